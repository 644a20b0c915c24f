"""Counts the samples of a framework that cannot be asked to stop, and ends the process with a report after the last."""

from __future__ import annotations

import json
import os
from time import monotonic, process_time

from peak import peak_mb


class Stopwatch:
    def __init__(self, samples: int) -> None:
        self.samples, self.seen, self.outputs = samples, 0, 0
        self.started: tuple[float, float] | None = None

    def count(self) -> None:
        if self.started is None:
            self.started = (monotonic(), process_time())
        self.seen += 1
        if self.seen == self.samples:
            report = {
                "samples": self.seen, "outputs": self.outputs, "wall_s": monotonic() - self.started[0],
                "cpu_s": process_time() - self.started[1], "rss_mb": peak_mb(),
            }  # fmt: skip
            print(json.dumps(report), flush=True)
            os._exit(0)
