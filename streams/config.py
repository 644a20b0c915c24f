"""Settings of the stream side, validated where they are used; `infra.settings.load` builds them from `harmony.yaml`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from msgspec import Meta

_CONTEXT_MS: Final = 1_920_000
_LEAST_CONTEXT_STEPS: Final = 128
_MOST_CONTEXT_STEPS: Final = 512


@dataclass(frozen=True, slots=True)
class StreamConfig:
    """How event time is cut into slots, and the limits of a partition.

    Attributes:
        step_ms: slot length; slots are epoch-aligned and half-open `[slot*step_ms, (slot+1)*step_ms)`.
        grace_ms: a slot closes when stream time reaches its end + grace.
        skew_ms: a sample further ahead of its record's broker stamp than this is dead-lettered.
        context_steps: L, slots kept in the fine ring and pages read back on restore; 0 becomes what 32 minutes hold,
            128 to 512, because a level is told from chance by time, however it is cut.
        max_workloads: known workloads a partition may hold; only new ones are refused beyond it.
        max_undeclared: how many of them may be undeclared; a namespace (the name up to its last slash) gets half.
        max_record_bytes: larger records are dead-lettered unread.
        source_silence_steps: after this many steps without a page a source shows as silent.
        source_cap: upper limit of one source in a sum over a workload's sources, in means of the others; None = no
            limit. With 2, one wrong source of n moves a sum by at most one n-th.
        controls_in_telemetry: accept control records from `telemetry.requests` as well as from `controls`.

    Raises:
        ValueError: a value out of range, or `skew_ms` above `grace_ms` (one fast clock would make the others late).
    """

    step_ms: Annotated[
        int,
        Meta(
            description="Length of a step; not shorter than the sources' interval.",
            ge=1,
            le=86_400_000,
            extra={"key": "top.step_s"},
        ),
    ] = 15_000
    grace_ms: Annotated[int, Meta(description="A slot closes this long after its end.", ge=0)] = 15_000
    skew_ms: Annotated[int, Meta(description="Samples further ahead of the broker's clock are refused.", ge=0)] = 2_000
    context_steps: Annotated[
        int,
        Meta(description="Steps of history of a forecast; 0: 32 minutes, 128 to 512 steps.", ge=0, le=100_000),
    ] = 0
    max_workloads: Annotated[int, Meta(description="Per partition; only new ones are refused beyond it.", gt=0)] = (
        10_000
    )
    max_undeclared: Annotated[
        int, Meta(description="Undeclared ones among them; a namespace gets half. Declared ones go first.", ge=0)
    ] = 256
    max_record_bytes: Annotated[int, Meta(description="Larger telemetry records are dead-lettered.", gt=0)] = 65_536
    source_silence_steps: Annotated[int, Meta(description="Steps without data until a source is silent.", gt=0)] = 3
    source_cap: Annotated[
        float | None,
        Meta(description="No source counts for more than so many times the mean of the others; 2 is safe.", ge=1),
    ] = None
    controls_in_telemetry: Annotated[
        bool,
        Meta(description="Obey pins, modes and pauses in `telemetry.requests` too, from anyone who may write it."),
    ] = False

    def __post_init__(self) -> None:
        if self.context_steps == 0 and self.step_ms > 0:
            steps = min(max(-(-_CONTEXT_MS // self.step_ms), _LEAST_CONTEXT_STEPS), _MOST_CONTEXT_STEPS)
            object.__setattr__(self, "context_steps", steps)
        for name in ("step_ms", "context_steps", "max_workloads", "max_record_bytes", "source_silence_steps"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        if self.max_undeclared < 0:
            raise ValueError(f"max_undeclared must not be negative, got {self.max_undeclared}")
        if self.source_cap is not None and not self.source_cap >= 1:
            raise ValueError(f"source_cap must be at least 1, or None for no cap, got {self.source_cap}")
        if self.grace_ms < 0 or self.skew_ms < 0:
            raise ValueError(f"grace_ms and skew_ms must not be negative, got {self.grace_ms} and {self.skew_ms}")
        if self.skew_ms > self.grace_ms:
            raise ValueError(
                f"skew_ms ({self.skew_ms}) must not exceed grace_ms ({self.grace_ms}): "
                "one fast clock would make every other source late"
            )

    def slot_of(self, ts_ms: int) -> int:
        """Slot that holds the instant.

        >>> StreamConfig(step_ms=15_000).slot_of(31_000)
        2
        """
        return ts_ms // self.step_ms

    def slot_end_ms(self, slot: int) -> int:
        """First instant after the slot; the origin of a forecast made when it closes."""
        return (slot + 1) * self.step_ms

    def last_closed(self, stream_time_ms: int) -> int:
        """Newest slot that is closed at this stream time.

        >>> StreamConfig(step_ms=15_000, grace_ms=15_000).last_closed(45_000)
        1
        """
        return (stream_time_ms - self.grace_ms) // self.step_ms - 1


# Upper bounds of the lateness buckets. They include one step of the demo (5 s) and the default grace (15 s).
LATENESS_BOUNDS_MS: Final = (
    500,
    1_000,
    2_500,
    5_000,
    10_000,
    15_000,
    20_000,
    30_000,
    60_000,
    120_000,
    300_000,
    900_000,
    3_600_000,
)
