"""The JSON half of the hand-written loops: messages of one partition to ids, times and a matrix."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter

import numpy as np
import orjson
from windows import Windows


def single(values: Sequence[bytes], windows: Windows, pick: itemgetter) -> tuple | None:
    ids, times, rows = [], [], []
    id_of = windows.id_of
    for value in values:
        message = orjson.loads(value)
        if "values" in message:
            ids.append(id_of(message["workload"]))
            times.append(message["ts_ms"])
            rows.append(pick(message["values"]))
    return (np.array(ids), np.array(times), np.array(rows, np.float64)) if rows else None


def packed(values: Sequence[bytes], windows: Windows, pick: itemgetter) -> tuple | None:
    ids, times, blocks = [], [], []
    for value in values:
        message = orjson.loads(value)
        if "values" in message:
            times.append(np.array(message["ts_ms"]))
            ids.append(np.full(len(times[-1]), windows.id_of(message["workload"])))
            blocks.append(np.array(pick(message["values"]), np.float64).T)
    return (np.concatenate(ids), np.concatenate(times), np.concatenate(blocks)) if blocks else None


FORMS: dict[str, Callable[..., tuple | None]] = {"single": single, "packed": packed}
