"""How a worker reaches Kafka, as Faust and aiokafka want to be told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import faust


@dataclass(frozen=True, slots=True)
class ConnectionConfig:
    """How the worker reaches Kafka.

    Attributes:
        instance_id: makes the membership static: from a kill to the next output about 2 s instead of a session.
        security: keyword arguments of aiokafka's clients (security_protocol, ssl_context, sasl_...).
    """

    brokers: str
    group: str
    instance_id: str | None = None
    security: Mapping[str, Any] = field(default_factory=dict)
    session_timeout_s: float = 10.0
    heartbeat_s: float = 2.0
    request_timeout_s: float = 30.0
    commit_interval_s: float = 1.0
    producer_linger_s: float = 0.0

    def credentials(self) -> faust.SASLCredentials | faust.SSLCredentials | None:
        """The same security as Faust spells it; None for plain text."""
        context = self.security.get("ssl_context")
        mechanism = self.security.get("sasl_mechanism")
        if mechanism is not None:
            return faust.SASLCredentials(
                username=self.security.get("sasl_plain_username"),
                password=self.security.get("sasl_plain_password"),
                mechanism=mechanism,
                ssl_context=context,
            )
        return faust.SSLCredentials(context=context) if context is not None else None
