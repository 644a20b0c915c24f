"""One worker process: its roles, its plug-ins, and what ends it."""
