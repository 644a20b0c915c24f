"""The declarative list of topics: one place that names them, their partitions and their retention."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from msgspec import Meta

from streams.log import OtherSettings

DAY_MS = 86_400_000
MIB = 1 << 20
# Upper limit of a plan record, which holds all workloads of a partition with some 400 bytes each.
PLAN_BYTES = 32 * MIB
# Upper limit of a control record, which is refused beyond it; a valid one has at most some 3 kB.
CONTROL_BYTES = 16 << 10
# Bytes of a week's 1,008 coarse rows for a workload with a name of some 30 characters.
_COARSE_WEEK_BYTES = 48_384
_STAMP = {"message.timestamp.type": "LogAppendTime"}
_LOG = {**_STAMP, "cleanup.policy": "delete"}


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """A topic as it must exist on the cluster. `config` holds broker-side topic settings as strings."""

    name: str
    partitions: int
    config: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Topics:
    """Full topic names under one prefix, and the specification of each.

    Attributes:
        prefix: put before every name, dot included.
        partitions: of the telemetry topics, and so of pages and commits; part of the contract once state exists.
        pages_retention_bytes: per partition; should hold at least twice L pages of both sources.
        max_workloads: per partition; a week of their ten-minute means is kept.
    """

    prefix: Annotated[
        str,
        Meta(
            description="Put before every topic name; each fleet needs its own. Letters, digits, . - and _.",
            pattern=r"^[A-Za-z0-9._-]*$",
            extra={"key": "top.topic_prefix"},
        ),
    ] = "harmony."
    partitions: Annotated[
        int,
        Meta(
            description="Of the telemetry topics; fixed once there is state.",
            ge=1,
            le=1024,
            extra={"key": "top.partitions"},
        ),
    ] = 4
    pages_retention_bytes: Annotated[int, Meta(description="Per partition of `pages`.", ge=MIB)] = 512 * MIB
    max_workloads: int = 10_000

    @property
    def telemetry_gpu(self) -> str:
        return self.prefix + "telemetry.gpu"

    @property
    def telemetry_requests(self) -> str:
        return self.prefix + "telemetry.requests"

    @property
    def controls(self) -> str:
        return self.prefix + "controls"

    @property
    def telemetry_raw(self) -> str:
        return self.prefix + "telemetry.raw"

    @property
    def pages(self) -> str:
        return self.prefix + "pages"

    @property
    def pages_coarse(self) -> str:
        return self.prefix + "pages.coarse"

    @property
    def plans(self) -> str:
        return self.prefix + "plans"

    @property
    def commits(self) -> str:
        return self.prefix + "commits"

    @property
    def forecasts(self) -> str:
        return self.prefix + "forecasts"

    @property
    def decisions(self) -> str:
        return self.prefix + "decisions"

    @property
    def commands(self) -> str:
        return self.prefix + "commands"

    @property
    def dead_letters(self) -> str:
        return self.prefix + "dead-letters"

    @property
    def _coarse_bytes(self) -> int:
        """Retention of `pages.coarse` per partition: a week of `max_workloads`, at least 64 MiB."""
        return max(64 * MIB, -(-_COARSE_WEEK_BYTES * self.max_workloads // MIB) * MIB)

    def retention_bytes(self) -> dict[str, int]:
        """Bytes that each topic with a size limit keeps of a partition, by topic."""
        limits = {spec.name: int(spec.config.get("retention.bytes", -1)) for spec in self.specs()}
        return {name: num_bytes for name, num_bytes in limits.items() if num_bytes >= 0}

    def specs(self) -> tuple[TopicSpec, ...]:
        """Every topic that HARMONY needs, in the order of the data flow."""
        most = {"max.message.bytes": str(128 * 1024)}  # of a batch of records
        telemetry = {**_days(1), **most}
        p = self.partitions
        return (
            TopicSpec(self.telemetry_gpu, p, telemetry),
            TopicSpec(self.telemetry_requests, p, telemetry),
            TopicSpec(self.controls, 1, {**_days(30), **most}),
            TopicSpec(self.forecasts, p, _days(3)),
            TopicSpec(self.decisions, p, _days(30)),
            TopicSpec(
                self.commands,
                p,
                {
                    **_STAMP,
                    "cleanup.policy": "compact,delete",
                    "retention.ms": str(7 * DAY_MS),
                    "segment.ms": str(DAY_MS),
                },
            ),
            TopicSpec(self.dead_letters, p, _days(7)),
            TopicSpec(self.pages, p, _bounded(self.pages_retention_bytes)),
            TopicSpec(self.pages_coarse, p, _bounded(self._coarse_bytes)),
            TopicSpec(self.plans, 1, {**_bounded(256 * MIB), "max.message.bytes": str(PLAN_BYTES)}),
            TopicSpec(self.commits, p, _bounded(128 * MIB)),
        )

    def check_partition(self, topic: str, partition: int) -> None:
        """Check that a partition is one of those in the settings; workers read the counts only when they start.

        Raises:
            OtherSettings: the topic has more partitions than the settings say, or is not a topic of the settings.
        """
        num_partitions = next((spec.partitions for spec in self.specs() if spec.name == topic), None)
        if num_partitions is None:
            raise OtherSettings(
                f"{topic} is none of the topics that start with {self.prefix!r}: set `topic_prefix` to what its name "
                "begins with"
            )
        if partition >= num_partitions:
            raise OtherSettings(
                f"{topic} has been given more partitions than the {num_partitions} of the settings: give the public "
                "topics the new count, set `partitions`, and accept a new start with `harmony state reset`"
            )

    def raw_spec(self) -> TopicSpec:
        """The optional topic of third-party formats, for whom a mapper runs."""
        return TopicSpec(self.telemetry_raw, self.partitions, _days(0.25))


def _days(n: float) -> dict[str, str]:
    return {**_LOG, "retention.ms": str(int(n * DAY_MS))}


def _bounded(retention_bytes: int) -> dict[str, str]:
    """A broker-side ring: bounded by size, never compacted (a stale page must not replace a newer one)."""
    return {
        **_LOG,
        "retention.ms": "-1",
        "retention.bytes": str(retention_bytes),
        "segment.bytes": str(max(MIB, retention_bytes // 4)),
    }
