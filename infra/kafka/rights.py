"""The least rights on a Kafka cluster that each part of HARMONY works with, and which of them a user lacks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from infra.settings.limits import ROLES
from streams.topics import Topics

Kind = Literal["topic", "group"]
# Who is granted rights: roles of workers, the page of any worker, and those at either end.
PARTS = (*ROLES, "page", "publisher", "mapper", "actuator", "reader", "operator", "reset")


@dataclass(frozen=True, slots=True)
class Right:
    """Operations on one topic or group, by its full name. READ and WRITE include DESCRIBE, as in Kafka."""

    kind: Kind
    name: str
    operations: tuple[str, ...]


def workers_group(topics: Topics) -> str:
    """The consumer group of all workers on these topics."""
    return f"{topics.prefix}workers"


def rights_of(topics: Topics, parts: Iterable[str]) -> tuple[Right, ...]:
    """What these parts need together, topics in the order a reader meets them, groups last.

    Raises:
        ValueError: a part that there is not.
    """
    needed: dict[tuple[Kind, str], set[str]] = {}
    for part in parts:
        if part not in PARTS:
            raise ValueError(f"{part!r} is none of {', '.join(PARTS)}")
        for kind, name, operations in _table(topics)[part]:
            needed.setdefault((kind, name), set()).update(operations.split())
    order = [spec.name for spec in topics.specs()] + [topics.telemetry_raw]
    ranked = sorted(needed, key=lambda at: (at[0] == "group", order.index(at[1]) if at[0] == "topic" else 0, at[1]))
    return tuple(Right(kind, name, tuple(sorted(needed[kind, name]))) for kind, name in ranked)


def _table(t: Topics) -> Mapping[str, Sequence[tuple[Kind, str, str]]]:
    group: tuple[Kind, str, str] = ("group", workers_group(t), "READ")
    # WRITE on telemetry is for the ticks that close silent partitions.
    return {
        "ingest": (
            ("topic", t.telemetry_gpu, "READ WRITE"),
            ("topic", t.telemetry_requests, "READ WRITE"),
            ("topic", t.dead_letters, "WRITE"),
            ("topic", t.pages, "READ WRITE"),
            group,
        ),
        "forecast": (
            ("topic", t.pages, "READ"),
            ("topic", t.pages_coarse, "READ WRITE"),
            ("topic", t.commits, "READ WRITE"),
            ("topic", t.plans, "READ WRITE"),
            ("topic", t.forecasts, "WRITE"),
            group,
        ),
        "decide": (
            ("topic", t.controls, "READ"),
            ("topic", t.plans, "READ WRITE"),
            ("topic", t.commits, "READ WRITE"),
            ("topic", t.decisions, "READ WRITE"),
            ("topic", t.dead_letters, "WRITE"),
            ("topic", t.commands, "WRITE"),
            group,
        ),
        "page": (
            ("topic", t.decisions, "READ"),
            ("topic", t.forecasts, "READ"),
            ("topic", t.plans, "READ"),
            ("topic", t.dead_letters, "READ"),
        ),
        "publisher": (("topic", t.telemetry_gpu, "WRITE"), ("topic", t.telemetry_requests, "WRITE")),
        "mapper": (
            ("topic", t.telemetry_raw, "READ"),
            ("topic", t.telemetry_gpu, "WRITE"),
            ("topic", t.telemetry_requests, "WRITE"),
            ("group", f"{t.prefix}mapper", "READ"),
        ),
        "actuator": (("topic", t.commands, "READ"), ("topic", t.telemetry_requests, "WRITE")),
        "reader": (("topic", t.forecasts, "READ"), ("topic", t.decisions, "READ"), ("topic", t.commands, "READ")),
        "operator": (
            ("topic", t.controls, "WRITE"),
            ("topic", t.decisions, "READ"),
            ("topic", t.commands, "READ"),
            ("topic", t.dead_letters, "READ"),
            ("topic", t.telemetry_gpu, "WRITE"),
            ("topic", t.telemetry_requests, "WRITE"),
        ),
        "reset": (
            ("topic", t.pages, "READ DELETE"),
            ("topic", t.pages_coarse, "READ DELETE"),
            ("topic", t.plans, "READ DELETE"),
            ("topic", t.commits, "READ DELETE"),
            ("group", workers_group(t), "READ DELETE"),
        ),
    }


def lacking(needed: Iterable[Right], granted: Mapping[tuple[Kind, str], Iterable[str]]) -> tuple[Right, ...]:
    """The part of `needed` that is not granted; what is not in `granted` at all counts as not granted."""
    missing_rights = []
    for right in needed:
        have = set(granted.get((right.kind, right.name), ()))
        missing = tuple(operation for operation in right.operations if operation not in have)
        if missing:
            missing_rights.append(Right(right.kind, right.name, missing))
    return tuple(missing_rights)


def rights_text(rights: Iterable[Right]) -> str:
    """`READ and WRITE on topic harmony.pages, READ on group harmony.workers`."""
    return ", ".join(f"{' and '.join(right.operations)} on {right.kind} {right.name}" for right in rights)


def as_commands(rights: Iterable[Right], principal: str, brokers: str) -> list[str]:
    """The rights as `kafka-acls.sh` lines for an administrator."""
    return [
        f"kafka-acls.sh --bootstrap-server {brokers} --add --allow-principal '{principal}' "
        + " ".join(f"--operation {_camel(operation)}" for operation in right.operations)
        + f" --{right.kind} {right.name}"
        for right in rights
    ]


def _camel(operation: str) -> str:
    return "".join(word.capitalize() for word in operation.split("_"))
