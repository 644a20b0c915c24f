"""Blocks of a Prometheus server that hold days of a simulated vLLM fleet, as if it had been scraped all the time."""

from __future__ import annotations

import math
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

LE_S = (0.25, 0.5, 1.0, 2.0, 5.0)


@dataclass(frozen=True, slots=True)
class Engine:
    """One replica of a model, whose load has a day and an hour; its counters are a function of time.

    Attributes:
        since_s: when it started.
    """

    model: str
    instance: str
    since_s: float
    scale: float = 1.0

    def rate_rps(self, at_s: float) -> float:
        """Requests per second."""
        return self.scale * (
            3.0 + 2.0 * math.sin(2 * math.pi * at_s / 86_400) + 0.5 * math.sin(2 * math.pi * at_s / 3_600)
        )

    def started(self, at_s: float) -> float:
        """Requests so far: the integral of the rate."""

        def integral(t: float) -> float:
            day, hour = 86_400 / (2 * math.pi), 3_600 / (2 * math.pi)
            return 3.0 * t - 2.0 * day * math.cos(t / day) - 0.5 * hour * math.cos(t / hour)

        return math.floor(self.scale * (integral(at_s) - integral(self.since_s)))

    def page(self, at_s: float, labels: str) -> Iterator[tuple[str, str, float]]:
        """Name, labels and value of every sample."""
        started = self.started(at_s)
        running = 2.0 * round(self.rate_rps(at_s))
        own = f'model_name="{self.model}"{labels}'
        yield "vllm:num_requests_running", own, running
        yield "vllm:num_requests_waiting", own, 0.0
        yield "vllm:kv_cache_usage_perc", own, 0.04 * running
        yield "vllm:prompt_tokens_total", own, 700.0 * started
        yield "vllm:generation_tokens_total", own, 200.0 * started
        yield "vllm:request_success_total", f'finished_reason="stop",{own}', max(0.0, started - running)
        for name, sum_s in (("vllm:time_to_first_token_seconds", 0.3), ("vllm:inter_token_latency_seconds", 0.02)):
            for le in LE_S:
                yield f"{name}_bucket", f'le="{le}",{own}', math.floor(started * min(1.0, 0.6 + 0.2 * le))
            yield f"{name}_bucket", f'le="+Inf",{own}', started
            yield f"{name}_count", own, started
            yield f"{name}_sum", own, sum_s * started


def write_past(
    home: Path,
    engines: list[Engine],
    start_s: int,
    end_s: int,
    step_s: int,
    present: Callable[[float], bool] = lambda _: True,
    job: str = "harmony",
) -> None:
    """Write the blocks into the data folder of a server that is not running.

    Args:
        present: whether the fleet was scraped at an instant.
    """
    home.mkdir(parents=True, exist_ok=True)
    text = home / "past.om"
    lines: dict[str, list[str]] = {}
    for at_s in range(start_s, end_s, step_s):
        for engine in engines if present(at_s) else ():
            for name, labels, value in engine.page(at_s, f',instance="{engine.instance}",job="{job}"'):
                lines.setdefault(name, []).append(f"{name}{{{labels}}} {value:g} {at_s}\n")
    # A family's samples stand together, and those of a series one after the other.
    with text.open("w") as out:
        for name in sorted(lines):
            out.writelines(lines.pop(name))
        out.write("# EOF\n")
    subprocess.run(
        ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(text), str(home / "tsdb")],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    text.unlink()
