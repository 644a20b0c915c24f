"""The smallest replica count whose risk is within its limit, with queues and deadlines simulated."""
