"""What every command stands on: the one error a user sees, options, texts, files, addresses, plots."""
