"""The command line: the one program `harmony` and its commands."""
