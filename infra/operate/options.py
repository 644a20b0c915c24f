"""What every operating command shares: its options, where the fleet's topics are, and how it fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from infra.console.errors import HarmonyError

if TYPE_CHECKING:
    from infra.kafka.tail import TopicTail
    from infra.operate.problems import Problems
    from streams.topics import Topics

Brokers = Annotated[
    str | None, typer.Option("--brokers", "-b", help="Kafka, host:port; default: settings, then the running demo.")
]
Config = Annotated[Path | None, typer.Option("--config", "-c", help="harmony.yaml to use.", dir_okay=False)]
Json = Annotated[bool, typer.Option("--json", help="JSON on stdout.")]


class Override(NamedTuple):
    """A word of an operator that overrides decisions.

    Attributes:
        action: pin, unpin, pause or resume.
        workload: None: all of them; of pause and resume only.
        replicas: of a pin.
        duration: of a pin, such as 2h.
    """

    action: str
    workload: str | None
    reason: str
    replicas: int = 0
    duration: str = ""


class Place:
    """Where the fleet's topics are: brokers, names, client security; and which workloads the settings declare.

    Attributes:
        bounds: fewest and most replicas of each declared workload.
    """

    def __init__(self, brokers: str | None, config: Path | None) -> None:
        from infra.kafka.discovery import find_fleet

        settings, self.brokers = find_fleet(config, brokers)
        self.topics: Topics = settings.topics
        self.declared = frozenset(section.id for section in settings.workloads)
        self.bounds = {spec.id: (spec.min_replicas, spec.max_replicas) for spec in settings.policy.workloads}
        self.security: dict[str, Any] = settings.kafka_client_options()

    def tail(self, topic: str) -> TopicTail:
        from infra.kafka.tail import TopicTail

        return TopicTail(self.brokers, topic, security=self.security)

    def problems(self) -> Problems:
        from infra.operate.problems import Problems

        return Problems(self.brokers, self.topics, self.security)


@contextmanager
def plain_errors() -> Iterator[None]:
    """A user's mistake or a fault ends the command with one sentence on stderr."""
    try:
        yield
    except HarmonyError as error:
        typer.echo(f"harmony: {error.message}", err=True)
        raise typer.Exit(error.exit_code) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def emit(value: Any) -> None:
    """One JSON document on a line of stdout."""
    import orjson

    typer.echo(orjson.dumps(value).decode())
