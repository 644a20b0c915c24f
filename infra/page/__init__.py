"""The worker's page: what the fleet asks for, what was decided and why, read from the output topics, live."""
