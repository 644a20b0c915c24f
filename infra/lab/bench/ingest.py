"""`harmony bench ingest`: stage 1 beside rivals on the same preloaded topic, alternating, medians."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from infra.console.errors import HarmonyError
from infra.console.options import say
from infra.kafka.admin import create_topics
from infra.kafka.embedded import EmbeddedKafka
from infra.lab.bench.job import (
    FIELDS,
    FORMS,
    NUM_WORKLOADS,
    PACK,
    PAGE_BYTES,
    PAGE_SAMPLES,
    PARTITIONS,
    SOURCES_PER_WORKLOAD,
    STREAM,
    Form,
    closing_tick,
    preload,
    records,
)
from infra.lab.bench.subjects import BenchSubject, SubjectResult, harmony_subject, measure, python_with, rival
from infra.lab.report import document, load_average, print_table, spread, write_json
from streams.topics import Topics, TopicSpec

# The ratios that ingest must not fall below: within one run, so that they mean the same on every machine.


class Limit(NamedTuple):
    """Least rate and least thrift (a rival's CPU per sample over ours) of HARMONY beside that rival in the same run."""

    rival: str
    rate: float
    thrift: float


# Some way below what was measured: rates on a machine whose cores are shared differ by a fifth from run to run.
LIMITS: Mapping[str, Limit] = {
    "single": Limit("aiokafka loop", rate=1.1, thrift=1.0),
    "packed": Limit("aiokafka loop", rate=1.2, thrift=1.2),
    "binary": Limit("fetch only", rate=0.13, thrift=0.13),
}


def fallen(results: Mapping[str, Any]) -> list[str]:
    """One sentence for each ratio of a bench's results that lies below its limit; forms without the rival are left out.

    Args:
        results: by form, as `harmony bench ingest` stores them.
    """
    sentences = []
    for form, result in results.items():
        limit, subjects = LIMITS[form], result["subjects"]
        if limit.rival not in subjects:
            continue
        harmony, rival = subjects["harmony"], subjects[limit.rival]
        for what, least, ratio in (
            ("rate", limit.rate, _median(harmony, "samples_per_s") / _median(rival, "samples_per_s")),
            ("thrift", limit.thrift, _median(rival, "cpu_us_per_sample") / _median(harmony, "cpu_us_per_sample")),
        ):
            if ratio < least:
                sentences.append(f"{form}: {what} is {ratio:.2f} x the {limit.rival}, the limit is {least:.2f}.")
    return sentences


def _median(subject: Mapping[str, Any], figure: str) -> float:
    return float(subject[figure]["median"])


# What the others are compared with: the loop that one would write by hand, and where none could be faster, fetching.
BASELINES: dict[Form, str] = {"single": "aiokafka loop", "packed": "aiokafka loop", "binary": "fetch only"}
_WRITING = "fetch and write"
_FAUST, _QUIX, _BYTEWAX = "plain Faust", "Quix Streams", "Bytewax"
# Slow ones are given fewer of the samples.
_SHARES = {_FAUST: 0.04, _QUIX: 0.25, _BYTEWAX: 0.5}


@dataclass(frozen=True, slots=True)
class IngestBench:
    """What to measure.

    Attributes:
        rounds: every subject runs once per round.
        samples: of the job; rounded up to whole packed records of every workload.
        brokers: a running Kafka; None = one is started for the bench.
        rivals: also run them, not only ours.
    """

    rounds: int = 5
    samples: int = 409_600
    forms: tuple[Form, ...] = FORMS
    brokers: str | None = None
    rivals: bool = True

    @property
    def num_samples(self) -> int:
        unit = PACK * NUM_WORKLOADS
        return -(-self.samples // unit) * unit


@contextmanager
def broker(brokers: str | None) -> Iterator[str]:
    """The address of a Kafka: the given one, or an embedded one for the time of the bench."""
    if brokers is not None:
        yield brokers
        return
    with tempfile.TemporaryDirectory(prefix="harmony-bench-") as home, EmbeddedKafka(Path(home), quiet=True) as kafka:
        yield kafka.bootstrap


def run_ingest_bench(bench: IngestBench, out: Path | None = None) -> dict[str, Any]:
    """Measure, print a table, and return the document (also stored in `out`).

    Raises:
        HarmonyError: a subject failed, or ours refused samples.
    """
    loads = [load_average()]
    results: dict[str, Any] = {}
    with broker(bench.brokers) as brokers:
        for form in bench.forms:
            results[form] = _form(bench, form, brokers, loads)
    job = {
        "rounds": bench.rounds,
        "samples": bench.num_samples,
        "fields": len(FIELDS),
        "workloads": NUM_WORKLOADS,
        "sources_per_workload": SOURCES_PER_WORKLOAD,
        "partitions": PARTITIONS,
        "step_ms": STREAM.step_ms,
        "grace_ms": STREAM.grace_ms,
        "pack": PACK,
    }
    body = document("ingest", job, results, loads)
    write_json(out, body)
    for sentence in fallen(results):
        say(sentence)
    return body


def _form(bench: IngestBench, form: Form, brokers: str, loads: list[float]) -> dict[str, Any]:
    topics = Topics(f"bench-{form}-{os.urandom(3).hex()}.", PARTITIONS)
    out_topic = f"{topics.prefix}windows"
    create_topics(brokers, [*topics.specs(), TopicSpec(out_topic, PARTITIONS)])
    say(f"{form}: publishing {bench.num_samples:,} samples ...")
    samples = bench.num_samples
    num_bytes = preload(brokers, topics.telemetry_requests, PARTITIONS, records(form, samples), closing_tick(samples))
    subjects = [harmony_subject(), *(_rivals(form) if bench.rivals else ())]
    measured: dict[str, list[SubjectResult]] = {s.name: [] for s in subjects}
    for number in range(bench.rounds):
        for shift in range(len(subjects)):
            subject = subjects[(number + shift) % len(subjects)]
            prefix = f"{topics.prefix}{subject.name.replace(' ', '-')}-{number}."
            if subject.name == "harmony":
                create_topics(brokers, [t for t in Topics(prefix, PARTITIONS).specs() if "telemetry" not in t.name])
            outcome = measure(subject, _job(subject, form, brokers, topics, out_topic, prefix, samples))
            measured[subject.name].append(outcome)
            loads.append(load_average())
            say(f"  {subject.name}: {outcome.samples_per_s:,.0f}/s, {outcome.cpu_us:.2f} us of CPU per sample")
    refused = sum(m.refused for m in measured["harmony"])
    if refused:
        raise HarmonyError(f"The bench's own samples were refused {refused} times: its figures mean nothing.")
    result = {"bytes_per_sample": num_bytes / samples, "subjects": _summaries(measured, BASELINES[form])}
    _show(form, result)
    return result


def _rivals(form: Form) -> Iterator[BenchSubject]:
    if form == "binary":
        yield rival(BASELINES[form], "fetch_ceiling.py")
        yield rival(_WRITING, "fetch_ceiling.py")
        return
    yield rival(BASELINES[form], "aiokafka_loop.py")
    yield from _installed("confluent loop", "confluent_loop.py", "confluent")
    if form == "single":
        yield rival(_FAUST, "faust_agent.py", share=_SHARES[_FAUST])
        yield from _installed(_QUIX, "quix_app.py", "quix")
        yield from _installed(_BYTEWAX, "bytewax_flow.py", "bytewax")


def _installed(name: str, script: str, environment: str) -> Iterator[BenchSubject]:
    try:
        yield rival(name, script, python_with(environment), _SHARES.get(name, 1.0))
    except HarmonyError as error:
        say(f"  {name} is left out: {error.message}")


def _job(
    subject: BenchSubject, form: Form, brokers: str, topics: Topics, out_topic: str, prefix: str, samples: int
) -> Mapping[str, Any]:
    if subject.name == "harmony":
        num_records = samples if form == "single" else samples // PACK
        # Each round starts with empty pages: our group is new, and so is the topic of its pages.
        return {
            "brokers": brokers,
            "telemetry": topics.telemetry_requests,
            "prefix": prefix,
            "records": num_records + PARTITIONS,
        }
    job: dict[str, Any] = {
        "brokers": brokers,
        "topic": topics.telemetry_requests,
        "out_topic": out_topic,
        "group": prefix.rstrip("."),
        "samples": int(samples * subject.share),
    }
    if form == "binary":
        if subject.name == _WRITING:
            return job | {"pack": PACK, "page_samples": PAGE_SAMPLES, "page_bytes": PAGE_BYTES}
        del job["out_topic"]
        return job | {"pack": PACK}
    job |= {"fields": list(FIELDS), "step_ms": STREAM.step_ms, "grace_ms": STREAM.grace_ms}
    if subject.name in _SHARES:  # frameworks
        return job | {"partitions": PARTITIONS}
    return job | {"form": form}


def _summaries(measured: Mapping[str, Sequence[SubjectResult]], baseline: str) -> dict[str, Any]:
    base = measured.get(baseline)
    summaries = {}
    for name, runs in measured.items():
        summary: dict[str, Any] = {
            "samples_per_s": spread([m.samples_per_s for m in runs]),
            "cpu_us_per_sample": spread([m.cpu_us for m in runs]),
            "rss_mb": spread([m.rss_mb for m in runs]),
            "runs": [asdict(m) for m in runs],
        }
        if base:
            # Within a round the subjects run one after the other, so noise of the machine mostly cancels.
            summary["ratio"] = spread([m.samples_per_s / b.samples_per_s for m, b in zip(runs, base, strict=True)])
            summary["cpu_ratio"] = median([b.cpu_us / m.cpu_us for m, b in zip(runs, base, strict=True)])
        summaries[name] = summary
    return summaries


def _show(form: Form, result: Mapping[str, Any]) -> None:
    rows = []
    for name, s in result["subjects"].items():
        rate, ratio = s["samples_per_s"], s.get("ratio")
        rows.append(
            (
                name,
                f"{rate['median']:,.0f}",
                f"{rate['min']:,.0f}-{rate['max']:,.0f}",
                f"{s['cpu_us_per_sample']['median']:.2f}",
                f"{s['rss_mb']['median']:.0f}",
                f"{ratio['median']:.2f}" if ratio else "",
                f"{s['cpu_ratio']:.2f}" if ratio else "",
            )
        )
    headings = (form, "samples/s", "range", "CPU us/sample", "RSS MB", f"x {BASELINES[form]}", "by CPU")
    print_table(headings, rows, f"{result['bytes_per_sample']:.0f} bytes per sample; medians")
