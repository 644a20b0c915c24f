"""Stage 3: one situation per workload, guards in order, then a decision and perhaps a command."""
