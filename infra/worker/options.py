"""What one worker process is told on its command line."""

from __future__ import annotations

from dataclasses import dataclass

from infra.console.errors import HarmonyError

ROLES = ("ingest", "forecast", "decide")


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """What one worker process is told beside the shared settings.

    Attributes:
        role: ingest, forecast, decide, or all.
        brokers: host:port, several separated by commas.
        instance_id: static member name; unique per process and stable over its lives.
        metrics_port: 0 = any free one.
        ticks: close silent partitions; off in replays and accelerated runs, whose publisher ticks.
        accelerated: event time is not wall time, so nothing expires by the broker's stamp.
    """

    role: str = "all"
    brokers: str = "127.0.0.1:9092"
    instance_id: str | None = None
    metrics_host: str = "127.0.0.1"
    metrics_port: int = 9464
    metrics_token: str | None = None
    ticks: bool = True
    accelerated: bool = False

    def roles(self) -> tuple[str, ...]:
        """The stages to run.

        Raises:
            HarmonyError: an unknown role.
        """
        if self.role == "all":
            return ROLES
        chosen = tuple(part.strip() for part in self.role.split(","))
        for part in chosen:
            if part not in ROLES:
                raise HarmonyError(f"unknown role {part!r}: use all, or some of {', '.join(ROLES)}", exit_code=2)
        return chosen

    def member_name(self) -> str | None:
        """Static member of the consumer group.

        Named after the roles too: the broker hands a static member that comes back its old assignment, whatever it
        subscribes to now, and the client fails on topics that it did not ask for.
        """
        roles = self.roles()
        return (
            self.instance_id if self.instance_id is None or roles == ROLES else f"{self.instance_id}.{'-'.join(roles)}"
        )
