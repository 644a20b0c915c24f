"""What one replica carries and how long it takes to start, as Bayesian posteriors."""
