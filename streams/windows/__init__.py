"""The windowed state of stage 2: recent slots per workload, and a week of ten-minute means."""
