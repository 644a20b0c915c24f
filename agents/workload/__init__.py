"""What is learned of one workload: signals, SLO classes, demand units and their state."""
