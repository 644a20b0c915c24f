"""What is measured and learned away from a live fleet: replays, backtests, evaluation, training, benches."""
