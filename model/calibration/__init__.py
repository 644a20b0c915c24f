"""How far forecasts and stated risks may be trusted, and the error budget."""
