"""Compares a page of the ingest stage with the page of the oracle."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec

from streams.config import StreamConfig
from streams.pages.page import Page
from tests.oracles.ingest_oracle import Settings


def check_page(page: Page, want: dict[str, Any]) -> None:
    for name in ("slot", "prev", "end_offset", "end_stamp_ms", "resume_offset"):
        assert getattr(page, name) == want[name], name
    assert list(page.workloads) == want["workloads"]
    assert msgspec.structs.asdict(page.counters) == want["counters"]
    assert [msgspec.structs.asdict(c) for c in page.controls] == want["controls"]
    for row, (workload, facts) in enumerate(zip(page.workloads, page.facts, strict=True)):
        expected = want["rows"][workload]
        cells = [
            float(value) if seen else None for value, seen in zip(page.values[row], page.observed[row], strict=True)
        ]
        assert cells == expected["cells"], workload
        assert not page.values[row][~page.observed[row]].any()
        for name in ("num_samples", "newest_ts_ms", "sources_seen", "sources_known", "censored", "reset"):
            assert getattr(facts, name) == expected[name], (workload, name)
        assert (None if facts.fleet is None else msgspec.structs.astuple(facts.fleet)) == expected["fleet"]
        assert [msgspec.structs.astuple(o) for o in facts.outcomes] == expected["outcomes"]
        queues = [(q.source, q.ts_ms, [(job.due_ts_ms, job.tokens) for job in q.jobs]) for q in facts.batch]
        assert queues == expected["batch"]
        counts = [(c.source, c.ts_ms, [msgspec.structs.astuple(k) for k in c.classes]) for c in facts.slo]
        assert counts == expected["slo"]
    assert [(s.workload, s.source) for s in page.series] == sorted(want["series"])
    for s in page.series:
        expected = want["series"][s.workload, s.source]
        assert s.ts_ms == expected["ts_ms"]
        assert {n: (s.older_ts_ms.get(n, s.ts_ms), v) for n, v in s.counters.items()} == expected["counters"]
        hists = {
            n: (
                s.older_ts_ms.get(n, s.ts_ms),
                {"le": list(h.le), "cumulative": list(h.cumulative), "count": h.count, "sum": h.sum},
            )
            for n, h in s.hists.items()
        }
        assert hists == expected["hists"]


def oracle_settings(config: StreamConfig, declared: Collection[str] = ()) -> Settings:
    return Settings(
        config.step_ms,
        config.grace_ms,
        config.skew_ms,
        config.context_steps,
        config.max_workloads,
        config.max_record_bytes,
        config.source_silence_steps,
        config.source_cap,
        config.max_undeclared,
        frozenset(declared),
        config.controls_in_telemetry,
    )
