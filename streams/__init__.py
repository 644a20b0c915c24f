"""What happened, and when: records, event time, slots, pages, and how Kafka's batches reach an agent.

This package knows nothing of models, decisions or metrics back ends. What folds is a pure core that takes records and
returns records; lanes, log reader and ticker around it wait and talk to Kafka. Only `transport`, `fetched_batch` and
`stage_app` import Faust.
"""
