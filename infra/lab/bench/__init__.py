"""`harmony bench`: how fast it is, beside rivals measured in the same run on the same topic."""
