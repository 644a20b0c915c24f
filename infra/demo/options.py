"""Options of `harmony run`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from infra.settings.load import Settings


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Flags of the main job.

    Attributes:
        settings: file, environment and flags together; a fleet simulated here has workloads and a policy of its own.
        config: the settings file given, None = the usual one or none.
        trace: recorded requests that drive the fleet; None = generated load.
        scenario: name of what is played where neither trace nor recording is; None = the default.
        report: HTML file to write at the end; None = in the state directory.
        recording: recorded telemetry to play in place of a fleet: a DCGM log or a GenTD26 directory.
        brokers: a running Kafka named by flag; None = for telemetry of your own that of the settings, else the
            embedded one.
        workers: worker processes beside this one's fleet and page.
        duration_s: wall time at that speed once the context is full; None = until the trace ends, or for ever.
        speed: simulated seconds per second; 0 = as fast as decisions come; None = as the scenario has it, 20 for a
            trace, 0 for a recording.
        step_s: length of a step; None = the demo's.
        seed: of load and fleet.
        fleet: False = no simulated fleet: workers, page and metrics only, for telemetry of your own.
        offline: never fetch anything.
        data_dir: of the embedded Kafka.
        kafka_port: of the embedded Kafka; None = the last or any free one.
        as_json: the summary as one JSON object on stdout.
        quiet: no live view and no progress.
    """

    settings: Settings
    config: Path | None = None
    trace: Path | None = None
    recording: Path | None = None
    scenario: str | None = None
    report: Path | None = None
    brokers: str | None = None
    workers: int = 1
    duration_s: float | None = None
    speed: float | None = None
    step_s: float | None = None
    seed: int = 0
    fleet: bool = True
    offline: bool = False
    data_dir: Path | None = None
    kafka_port: int | None = None
    as_json: bool = False
    quiet: bool = False
