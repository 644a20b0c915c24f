"""Counts what the Kafka clients complain of: their warnings and errors, by what they were doing."""

from __future__ import annotations

import logging

from streams.meter import Meter

# The longest matching name of a client's logger says what it was doing.
OPERATION_OF = {
    "aiokafka": "connect",
    "aiokafka.consumer.fetcher": "fetch",
    "aiokafka.consumer.group_coordinator": "rebalance",
    "aiokafka.producer": "produce",
    "kafka": "admin",
}


class KafkaComplaints(logging.Handler):
    """A handler of the clients' loggers that counts instead of writing."""

    def __init__(self, meter: Meter) -> None:
        super().__init__(logging.WARNING)
        self._meter = meter

    def emit(self, record: logging.LogRecord) -> None:
        """Count one line."""
        self._meter.count("kafka_errors_total", operation=_operation(record))

    def listen(self) -> None:
        """Hear every Kafka client of this process. Call it after logging is configured, which drops handlers."""
        for name in {logger.split(".", 1)[0] for logger in OPERATION_OF}:
            logging.getLogger(name).addHandler(self)


def _operation(record: logging.LogRecord) -> str:
    name = record.name
    while name not in OPERATION_OF and "." in name:
        name = name.rpartition(".")[0]
    operation = OPERATION_OF.get(name, "other")
    # The coordinator's logger speaks of commits and of the group alike.
    return "commit" if operation == "rebalance" and "commit" in record.getMessage().lower() else operation
