"""What is scraped: addresses on the command line, or a file as Prometheus' file_sd_configs reads it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from infra.console.errors import HarmonyError
from infra.console.web import split_url
from infra.yaml_text import load_yaml

_PATH = "/metrics"


@dataclass(frozen=True, slots=True)
class Target:
    """One exporter: where it answers, and the labels that its samples get."""

    url: str
    labels: dict[str, str] = field(default_factory=dict)


def parse_target(text: str, labels: dict[str, str] | None = None) -> Target:
    """`host:port` or a URL -> a target with label `instance`.

    Raises:
        HarmonyError: neither (exit code 2).
    """
    url = text if "://" in text else f"http://{text}"
    parts = split_url(url, "address of an exporter: write http://host:port/metrics or host:port")
    if not parts.path.strip("/"):
        url = url.rstrip("/") + _PATH
    return Target(url, {"instance": parts.netloc.rpartition("@")[2], **(labels or {})})


def parse_labels(texts: Sequence[str]) -> dict[str, str]:
    """`name=value` each.

    Raises:
        HarmonyError: one that is not (exit code 2).
    """
    labels = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise HarmonyError(f"--label {text!r}: write name=value, such as namespace=prod.", 2)
        labels[name] = value
    return labels


def read_targets(path: Path) -> list[Target]:
    """A file of targets, YAML or JSON: a list of `{targets: [host:port, …], labels: {name: value}}`.

    Raises:
        HarmonyError: unreadable, or not such a list; names the entry (exit code 2).
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise HarmonyError(f"Cannot read {path}: {getattr(error, 'strerror', None) or error}.", 2) from error
    _, content = load_yaml(text, path)
    if not isinstance(content, list):
        raise HarmonyError(f"{path}: must hold a list of {{targets: [...], labels: {{...}}}}.", 2)
    found = []
    for number, entry in enumerate(content):
        targets = entry.get("targets") if isinstance(entry, dict) else None
        labels = entry.get("labels") or {} if isinstance(entry, dict) else None
        if not isinstance(targets, list) or not isinstance(labels, dict):
            raise HarmonyError(f"{path}: entry {number} must hold targets, a list, and may hold labels, a mapping.", 2)
        found += [parse_target(str(t), {str(k): str(v) for k, v in labels.items()}) for t in targets]
    return found
