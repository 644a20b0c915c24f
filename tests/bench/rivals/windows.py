"""The numpy half of the hand-written loops: mean and maximum per workload, field and window, one record per window.

Frozen: a rival is changed only to make it faster. What it leaves out is deliberate and in its favour: no validation, no
duplicates, no late counters, no counters-to-rates, no state that survives a crash, windows closed between batches.
"""

from __future__ import annotations

import numpy as np
import orjson

RING = 512
MOST_WORKLOADS = 256


class Windows:
    """Sums, maxima and counts of the open windows of one partition."""

    def __init__(self, num_fields: int, step_ms: int, grace_ms: int) -> None:
        self.step_ms, self.grace_ms = step_ms, grace_ms
        self.ids: dict[str, int] = {}
        self.names: list[str] = []
        self.total = np.zeros((RING * MOST_WORKLOADS, num_fields))
        self.top = np.full((RING * MOST_WORKLOADS, num_fields), -np.inf)
        self.count = np.zeros(RING * MOST_WORKLOADS, np.int64)
        self.last_closed: int | None = None
        self.newest_ms = 0

    def id_of(self, workload: str) -> int:
        number = self.ids.get(workload)
        if number is None:
            number = self.ids[workload] = len(self.names)
            self.names.append(workload)
        return number

    def add(self, ids: np.ndarray, ts_ms: np.ndarray, values: np.ndarray) -> list[bytes]:
        """Fold samples (ids [n], ts_ms [n], values [n, fields]); the records of the windows that close."""
        slot = ts_ms // self.step_ms
        if self.last_closed is None:
            self.last_closed = int(slot.min()) - 1
        late = slot <= self.last_closed
        if late.any():
            keep = ~late
            ids, slot, values, ts_ms = ids[keep], slot[keep], values[keep], ts_ms[keep]
        if len(ids):
            cell = slot % RING * MOST_WORKLOADS + ids
            order = np.argsort(cell, kind="stable")
            cell = cell[order]
            starts = np.flatnonzero(np.r_[True, cell[1:] != cell[:-1]])
            at, values = cell[starts], values[order]
            self.total[at] += np.add.reduceat(values, starts, axis=0)
            self.top[at] = np.maximum(self.top[at], np.maximum.reduceat(values, starts, axis=0))
            self.count[at] += np.diff(np.r_[starts, len(cell)])
            self.newest_ms = max(self.newest_ms, int(ts_ms.max()))
        return self.close((self.newest_ms - self.grace_ms) // self.step_ms - 1)

    def close(self, up_to: int) -> list[bytes]:
        """Records of the windows up to this one."""
        records = []
        if self.last_closed is None:
            return records
        for slot in range(self.last_closed + 1, up_to + 1):
            base = slot % RING * MOST_WORKLOADS
            rows = np.flatnonzero(self.count[base : base + MOST_WORKLOADS])
            if not len(rows):
                continue
            at = rows + base
            body = {
                "slot": slot,
                "workloads": [self.names[i] for i in rows.tolist()],
                "mean": self.total[at] / self.count[at, None],
                "max": self.top[at],
                "count": self.count[at],
            }
            records.append(orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY))
            self.total[at], self.top[at], self.count[at] = 0.0, -np.inf, 0
        self.last_closed = max(self.last_closed, up_to)
        return records

    def finish(self) -> list[bytes]:
        """Records of everything still open."""
        return self.close(self.newest_ms // self.step_ms)
