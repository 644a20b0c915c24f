"""`python -m tests.faults.mutant NAME worker ...` is `harmony worker ...` with one thing done otherwise.

| name | what |
|---|---|
| commit-first | each lane publishes its commit records before its outputs |
| unasked | a worker does not ask for its rights before it starts |
| other-model | the forecaster draws from another seed, so its fingerprint is another |
"""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Sequence

from agents.decide.agent import DecideLane
from model.baselines.pool import FallbackForecaster
from model.baselines.ridge import RidgeForecaster
from model.baselines.smoothing import SeasonalNaiveForecaster
from streams.log import Emission, LogRecord
from streams.runtime.lane import Lane


async def commit_first(lane: Lane, group: list[Emission]) -> None:
    """Publish the commit records of a group before its outputs."""
    commits = [r for e in group for r in e.commits]
    if commits:
        await lane._send(commits)
        lane._mark_safe(group[-1].resume_offset)
    for level in range(max(len(e.outputs) for e in group)):
        records = [r for e in group if level < len(e.outputs) for r in e.outputs[level]]
        if records:
            lane._fail_point(f"{lane.stage}.before_outputs")
            await lane._send(records)


async def _sealed_first(lane: DecideLane, records: Sequence[LogRecord]) -> AsyncGenerator[Emission, None]:
    for record in records:
        pieces = list(lane.kernel.decide(record))
        yield Emission((), lane.kernel.seal(), pieces[-1].resume_offset, urgent=True)
        for piece in pieces:
            yield piece._replace(urgent=True)


def main() -> None:
    name = sys.argv.pop(1)
    if name == "commit-first":
        Lane._publish = commit_first  # type: ignore[method-assign]
        DecideLane.fold = _sealed_first  # type: ignore[method-assign]
    elif name == "unasked":
        from infra.kafka.admin import TopicAdmin

        TopicAdmin.missing_rights = lambda *_: ()  # type: ignore[method-assign]
    elif name == "other-model":
        from infra.worker import forecast_role as model_host

        other = FallbackForecaster(RidgeForecaster(seed=1), SeasonalNaiveForecaster())
        model_host.worker_forecaster = lambda *_, **__: other  # type: ignore[assignment]
    else:
        sys.exit(f"no mutation {name!r}")
    from infra.cli.app import main as harmony

    harmony()


if __name__ == "__main__":
    main()
