"""Closing a Kafka producer whatever became of the broker."""

from __future__ import annotations

import structlog
from kafka import KafkaProducer
from kafka.errors import KafkaError

log = structlog.get_logger()


def close_producer(producer: KafkaProducer, timeout_s: float) -> bool:
    """Give records on their way `timeout_s`, then close; never raises, so it hides no error that led here.

    Returns:
        Whether everything got through; what did not is in the log.
    """
    try:
        producer.close(timeout=timeout_s)
    except KafkaError as error:
        # kafka-python raises before it closes anything: its thread would go on, and garbage collection raise anew.
        producer._sender.force_close()  # noqa: SLF001
        producer._sender.join(timeout_s)  # noqa: SLF001
        producer._closed = True  # noqa: SLF001
        log.warning("producer_closed_early", waited_s=timeout_s, reason=str(error), client=producer.config["client_id"])
        return False
    return True
