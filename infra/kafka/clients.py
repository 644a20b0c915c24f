"""Why a broker that listens does not let us in: its client retries in silence and at last says only that it gave up."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import structlog
from kafka import KafkaProducer
from kafka.errors import KafkaError

_CLIENT = logging.getLogger("kafka")
_MOST = 50


class LoginWatch(logging.Handler):
    """Hears what the Kafka client says while it connects, in place of the terminal; a context manager around that.

    Args:
        brokers: for the sentence.
        security: as given to the client.
    """

    def __init__(self, brokers: str, security: Mapping[str, Any] | None) -> None:
        super().__init__(logging.WARNING)
        self._brokers, self._security = brokers, dict(security or {})
        self._messages: list[str] = []
        self._propagated = True

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the first lines; they say what the later ones only follow from."""
        if len(self._messages) < _MOST:
            self._messages.append(record.getMessage())

    def __enter__(self) -> Self:
        self._propagated, _CLIENT.propagate = _CLIENT.propagate, False
        _CLIENT.addHandler(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _CLIENT.removeHandler(self)
        _CLIENT.propagate = self._propagated

    def reason(self) -> str | None:
        """One sentence with the remedy; None where what was said names no cause that we know."""
        log_text = "\n".join(self._messages)
        user = self._security.get("sasl_plain_username")
        if "SaslAuthenticationFailed" in log_text:
            return (
                f"The brokers at {self._brokers} do not let user {user!r} in: unknown, or another password. Check "
                "sasl_username, the password and sasl_mechanism under advanced.kafka."
            )
        if "CERTIFICATE_VERIFY_FAILED" in log_text:
            detail = log_text.split("CERTIFICATE_VERIFY_FAILED]", 1)[1].split("(", 1)[0].strip()
            return (
                f"The certificate of the brokers at {self._brokers} is not trusted ({detail}). Set "
                "advanced.kafka.ssl_cafile to the authority that signed it, and use the name that it is for."
            )
        if "ALERT" in log_text and "CERTIFICATE" in log_text:
            return (
                f"The brokers at {self._brokers} want a certificate from us that they trust. Set ssl_certfile and "
                "ssl_keyfile under advanced.kafka."
            )
        if "Handshake failed" in log_text:
            return (
                f"The brokers at {self._brokers} speak no TLS that we can agree on there. Check the port and "
                "advanced.kafka.security_protocol."
            )
        if "socket disconnected" in log_text or (self._security and not log_text):
            protocol = self._security.get("security_protocol", "PLAINTEXT")
            who, also = (f" for user {user!r}", "user, password, ") if user else ("", "")
            return (
                f"A broker listens at {self._brokers} and ends every connection that we begin as {protocol}{who}. "
                f"Check {also}port and security_protocol under advanced.kafka."
            )
        return None


# Closing a Kafka producer whatever became of the broker.


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
