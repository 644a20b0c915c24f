"""What users add of their own through entry points: forecasters, policies, actuators, decoders; and what keeps us safe.

The contract is `docs/plugins.md`.
"""
