"""A decision, a promise, a refused record in words, for the command line and the page."""
