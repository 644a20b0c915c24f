"""From joint sample paths to plans: requests to the planner, their rows, limits and codec."""
