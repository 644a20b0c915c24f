"""What will happen, and what a replica can carry: forecasters, inference, capacity and lead-time posteriors.

Knows tensors and nothing of Kafka, Faust, records or policies.
"""
