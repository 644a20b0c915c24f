"""Closed slots as pages: the columns, their codec, and the chain of both sources."""
