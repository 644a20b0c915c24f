"""What to do about it: the forecast and decide stages, micro-batching, planner, guards, apply-time guard."""
