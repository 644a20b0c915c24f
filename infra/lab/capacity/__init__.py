"""A first capacity for `harmony.yaml`: from load tests that have been run, or estimated from model and GPU."""
