"""What happened, and when: records, event time, slots, pages, and how Kafka's batches reach an agent.

This package knows nothing of models, decisions or metrics back ends. Only `streams/transport.py` and
`streams/stage_app.py` import Faust; everything else is a pure core that takes records and returns records.
"""
