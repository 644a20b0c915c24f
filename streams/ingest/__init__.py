"""Stage 1: samples fold into slots, and a closed slot becomes a page."""
