"""Forecasters without a network: ridge regression, exponential smoothing, seasonal naive, and their pool."""
