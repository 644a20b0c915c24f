"""Results of load tests as their tools write them: how many requests came per second, and whether enough were good.

Read are the files of `vllm bench serve` and SGLang's `bench_serving` (an object, or one per line), with every request's
times where they were saved, and AIPerf's: its records of requests, one per line, or its summary.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import msgspec
import numpy as np

from agents.policy import Slo
from infra.console.errors import HarmonyError
from infra.simulator.arrivals import Arrivals, Tokens
from infra.simulator.ledger import Objective
from infra.simulator.profiles import EngineProfile
from infra.simulator.sizing import benchmark_rps
from infra.simulator.split import ServingModes, serving_modes
from model.capacity.grid import LOAD_TEST_OFF_BY
from model.capacity.roofline import OFF_BY, IterationCosts

_MOST_BYTES: Final = 1 << 30
_Count = Annotated[int, msgspec.Meta(ge=0, le=10**12)]
_Number = Annotated[float, msgspec.Meta(ge=0, le=1e15)]
_Kind = TypeVar("_Kind", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class LoadTest:
    """One rate that was tried.

    Attributes:
        rate_rps: requests that came per second.
        requests: that were sent.
        kept: whether enough of them were good.
        missed: how many were not; None: only percentiles are told.
    """

    source: str
    rate_rps: float
    requests: int
    kept: bool
    missed: int | None = None


class _Served(msgspec.Struct):
    """A result of vLLM's or SGLang's; beside these it holds percentiles such as `p99_ttft_ms`. Times are in seconds."""

    request_throughput: _Number
    completed: _Count
    failed: _Count | None = None
    num_prompts: _Count | None = None
    request_rate: float | str | None = None
    max_concurrency: _Count | None = None
    ttfts: list[_Number] | None = None
    itls: list[list[_Number]] | None = None
    errors: list[str | None] | None = None

    @property
    def sent(self) -> int:
        return max(self.completed + (self.failed or 0), self.num_prompts or 0, len(self.ttfts or ()))


class _Mean(msgspec.Struct):
    avg: _Number


class _Errors(msgspec.Struct):
    count: _Count = 0


class _Profiled(msgspec.Struct):
    """AIPerf's summary; latencies hold percentiles such as `p99`, in milliseconds."""

    request_throughput: _Mean
    request_count: _Mean
    time_to_first_token: dict[str, Any]
    inter_token_latency: dict[str, Any]
    error_summary: list[_Errors] | None = None


class _Milliseconds(msgspec.Struct):
    value: _Number


class _Times(msgspec.Struct):
    time_to_first_token: _Milliseconds
    inter_token_latency: _Milliseconds | None = None  # an answer of one token has none


class _Start(msgspec.Struct):
    request_start_ns: Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class _Record(msgspec.Struct):
    """AIPerf's record of one request."""

    metadata: _Start
    metrics: _Times | None = None
    error: Any = None


def read_load_tests(path: Path, slo: Slo) -> list[LoadTest]:
    """All tests that a file holds.

    Raises:
        HarmonyError: unreadable, or not a result that is known (exit code 2).
    """
    objects = _objects(path)
    if all("metadata" in body for _, body in objects):
        return [_of_records(path, objects, slo)]
    return [_of_summary(where, body, slo) for where, body in objects]


def _objects(path: Path) -> list[tuple[str, Mapping[str, Any]]]:
    """JSON objects of a file with the place of each: the whole file, or its lines."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise HarmonyError(f"{path}: is larger than a load test's result of 1 GiB.", 2)
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise HarmonyError(f"{path}: cannot be read ({error.strerror or error}).", 2) from None
    except UnicodeDecodeError:
        raise HarmonyError(f"{path}: is not UTF-8 text; give the JSON that a load test wrote.", 2) from None
    if not text.strip():
        raise HarmonyError(f"{path}: is empty; give the JSON that a load test wrote.", 2)
    try:
        return [(str(path), _object(str(path), text))]
    except ValueError:
        lines = [(f"{path}, line {k}", line) for k, line in enumerate(text.splitlines(), 1) if line.strip()]
    try:
        return [(where, _object(where, line)) for where, line in lines]
    except ValueError as error:
        raise HarmonyError(f"{path}: is not JSON ({error}); give the JSON that a load test wrote.", 2) from None


def _object(where: str, text: str) -> Mapping[str, Any]:
    try:
        body = json.loads(text)  # SGLang writes infinite rates, which strict JSON does not know
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(body, dict):
        raise HarmonyError(f"{where}: holds a {type(body).__name__}, not an object with a load test's result.", 2)
    return body


def _as(kind: type[_Kind], where: str, body: Mapping[str, Any]) -> _Kind:
    try:
        return msgspec.convert(body, kind)
    except msgspec.ValidationError as error:
        raise HarmonyError(f"{where}: is not a load test's result: {error}.", 2) from None


def _of_summary(where: str, body: Mapping[str, Any], slo: Slo) -> LoadTest:
    if isinstance(body.get("time_to_first_token"), dict):
        profiled = _as(_Profiled, where, body)
        latencies = profiled.time_to_first_token, profiled.inter_token_latency
        ttft_ms, tpot_ms = (
            _percentile(where, {k[1:]: v for k, v in latency.items() if k[:1] == "p"}, slo) for latency in latencies
        )
        missed = sum(errors.count for errors in profiled.error_summary or ())
        rate, sent = profiled.request_throughput.avg, round(profiled.request_count.avg) + missed
    elif "request_throughput" in body:
        served = _as(_Served, where, body)
        rate, sent = _offered(where, served), served.sent
        if served.ttfts is not None and served.itls is not None:
            return _of_times(where, served, rate, slo)
        ttft_ms, tpot_ms = (_percentile(where, _named(body, f"_{name}_ms"), slo) for name in ("ttft", "tpot"))
        missed = sent - served.completed
    else:
        raise HarmonyError(
            f"{where}: is no result that is known; give what `vllm bench serve --save-result`, SGLang's bench_serving "
            "or AIPerf wrote.",
            2,
        )
    in_time = ttft_ms <= 1000.0 * slo.ttft_s and tpot_ms <= 1000.0 * slo.tpot_s
    return LoadTest(where, _positive(where, rate), sent, in_time and _is_kept(slo, missed, sent))


def _of_times(where: str, served: _Served, rate: float, slo: Slo) -> LoadTest:
    """Every request's time to the first token, and between the further ones."""
    ttfts, itls = served.ttfts or [], served.itls or []
    if len(ttfts) != len(itls) or not ttfts:
        raise HarmonyError(f"{where}: ttfts and itls must hold one entry for each request.", 2)
    broken = [bool(error) for error in (served.errors or ())[: len(ttfts)]]
    broken += [False] * (len(ttfts) - len(broken))
    good = sum(
        not failed and _good(ttft_s, math.fsum(gaps) / len(gaps) if gaps else 0.0, slo)
        for ttft_s, gaps, failed in zip(ttfts, itls, broken, strict=True)
    )
    missed = served.sent - good
    return LoadTest(where, _positive(where, rate), served.sent, _is_kept(slo, missed, served.sent), missed)


def _of_records(path: Path, objects: Sequence[tuple[str, Mapping[str, Any]]], slo: Slo) -> LoadTest:
    """AIPerf's records of requests."""
    records = [_as(_Record, where, body) for where, body in objects]
    missed = 0
    for record in records:
        times = record.metrics
        if times is None or record.error:
            missed += 1
            continue
        gap_ms = 0.0 if times.inter_token_latency is None else times.inter_token_latency.value
        missed += not _good(times.time_to_first_token.value / 1000, gap_ms / 1000, slo)
    starts = [record.metadata.request_start_ns for record in records]
    if max(starts) == min(starts):
        raise HarmonyError(f"{path}: its requests all began at once, which says nothing of a rate.", 2)
    sent = len(records)
    rate = (sent - 1) * 1e9 / (max(starts) - min(starts))
    return LoadTest(str(path), rate, sent, _is_kept(slo, missed, sent), missed)


def _is_kept(slo: Slo, missed: int, sent: int) -> bool:
    """Whether so many may miss."""
    return missed <= (1.0 - slo.objective) * sent


def _good(ttft_s: float, tpot_s: float, slo: Slo) -> bool:
    return ttft_s <= slo.ttft_s and tpot_s <= slo.tpot_s


def _offered(where: str, served: _Served) -> float:
    """Requests that came per second."""
    declared = served.request_rate
    if isinstance(declared, float) and math.isfinite(declared):
        return declared
    if not served.max_concurrency:
        raise HarmonyError(
            f"{where}: its requests were all sent at once, which says nothing of a rate; give --request-rate to the "
            "load test.",
            2,
        )
    return served.request_throughput


def _named(body: Mapping[str, Any], end: str) -> dict[str, Any]:
    """Percentiles of `p99_ttft_ms` and its like, by their level."""
    return {key[1:].removesuffix(end): value for key, value in body.items() if key[:1] == "p" and key.endswith(end)}


def _percentile(where: str, offered: Mapping[str, Any], slo: Slo) -> float:
    """The lowest percentile that tells at least of the objective's share, in its own unit."""
    min_level = 100.0 * slo.objective
    levels = {
        float(level): float(value)
        for level, value in offered.items()
        if level.replace(".", "", 1).isdecimal() and isinstance(value, (int, float)) and abs(value) < 1e15
    }
    enough = [level for level in levels if level >= min_level - 1e-9]
    if not enough:
        raise HarmonyError(
            f"{where}: tells no percentile of {min_level:g} or more; save every request's times (`--save-detailed`, "
            "`--output-details`).",
            2,
        )
    return levels[min(enough)]


def _positive(where: str, rate: float) -> float:
    if not (math.isfinite(rate) and rate > 0):
        raise HarmonyError(f"{where}: its rate must be requests per second above 0, got {rate}.", 2)
    return rate


# From load tests, or from model and GPU, to what one replica carries within the SLO and how far that may be off.


_DRAWS: Final = 2_000
_SEED: Final = 7
_FEW_MISSES: Final = 2.0  # allowed in a test, below which one request more or fewer decides it


@dataclass(frozen=True, slots=True)
class MeasuredCapacity:
    """Requests/s of one replica, its uncertainty as a factor, and remarks for the user."""

    capacity_rps: float
    off_by: float
    remarks: tuple[str, ...] = ()


def capacity_of_load_tests(tests: Sequence[LoadTest], slo: Slo, replicas: int) -> MeasuredCapacity:
    """Between the highest rate that kept the objective and the lowest above it that did not.

    Raises:
        HarmonyError: no rate kept it (exit code 2).
    """
    failed_rps = min((test.rate_rps for test in tests if not test.kept), default=math.inf)
    kept_rps = max((test.rate_rps for test in tests if test.kept and test.rate_rps < failed_rps), default=None)
    if kept_rps is None:
        raise HarmonyError(
            f"Even at {failed_rps:g} requests/s too many missed {slo.ttft_s:g} s or {slo.tpot_s:g} s; test a lower "
            "rate, or allow more time.",
            2,
        )
    remarks = []
    sent = min(test.requests for test in tests if test.rate_rps in (kept_rps, failed_rps))
    if sent * (1.0 - slo.objective) < _FEW_MISSES:
        remarks.append(
            f"A test of {sent} requests cannot tell {slo.objective:.2%} from a little less: send "
            f"{math.ceil(_FEW_MISSES / (1.0 - slo.objective)):,} or more."
        )
    if math.isinf(failed_rps):
        remarks.append("No rate was too high, so that more may be carried: test higher ones.")
        return MeasuredCapacity(kept_rps / replicas, LOAD_TEST_OFF_BY, tuple(remarks))
    between = math.sqrt(failed_rps / kept_rps)
    return MeasuredCapacity(kept_rps * between / replicas, max(between, LOAD_TEST_OFF_BY), tuple(remarks))


def profile_of(name: str, costs: IterationCosts, gpus: int, max_batch: int, max_prefill_tokens: int) -> EngineProfile:
    """The replay's engine at these costs."""
    limits = {"max_batch": max_batch, "max_prefill_tokens": max_prefill_tokens}
    return EngineProfile(name=name, gpus_per_replica=gpus, **asdict(costs), **limits)


def of_profile(profile: EngineProfile, prompt: Tokens, output: Tokens, slo: Slo) -> MeasuredCapacity:
    """What a load test of four replicas of such an engine finds, simulated.

    Raises:
        HarmonyError: an idle replica misses the SLO too often (exit code 2).
    """
    lengths = _lengths(prompt, output)
    carried = benchmark_rps(profile, lengths, Objective(slo.ttft_s, slo.tpot_s), slo.objective, _SEED)
    if carried is None:
        raise HarmonyError(
            f"Even an idle replica does not keep {slo.ttft_s:g} s and {slo.tpot_s:g} s for {slo.objective:.2%} of such "
            f"requests: an iteration takes {1000 * profile.base_s:.0f} ms before it does anything. Allow more time, or "
            "give it more or faster GPUs.",
            2,
        )
    return MeasuredCapacity(carried, OFF_BY)


def modes_of_profile(
    profile: EngineProfile, prompt: Tokens, output: Tokens, slo: Slo, handover_token_s: float
) -> ServingModes:
    """Load tests of such an engine that prefills and decodes, and of pools that do either, simulated.

    Args:
        handover_token_s: time to hand over the cache of a prompt token.

    Raises:
        HarmonyError: neither mode keeps the SLO (exit code 2).
    """
    objective = Objective(slo.ttft_s, slo.tpot_s)
    modes = serving_modes(profile, _lengths(prompt, output), objective, slo.objective, _SEED, handover_token_s)
    if modes.together_rps is None and not modes.split_per_gpu_rps:
        raise HarmonyError(
            f"Neither mode keeps {slo.ttft_s:g} s and {slo.tpot_s:g} s for {slo.objective:.2%} of the requests. Single "
            "prompts take longer. Allow more time, or give a replica more or faster GPUs.",
            2,
        )
    return modes


def _lengths(prompt: Tokens, output: Tokens) -> Arrivals:
    rng = np.random.default_rng(_SEED)
    return Arrivals(np.zeros(_DRAWS), prompt.draw(rng, _DRAWS), output.draw(rng, _DRAWS))
