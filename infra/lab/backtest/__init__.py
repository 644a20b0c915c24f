"""What would HARMONY have done last week? A workload's recorded load and replicas, replayed on the simulated engine."""
