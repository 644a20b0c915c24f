"""Read a YAML file with the line of every key, so that a mistake is named where it stands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from infra.console.errors import HarmonyError
from infra.plain_yaml import NotPlainError, read_plain
from infra.yaml_text import load_yaml

KeyPath = tuple[str | int, ...]


@dataclass(frozen=True)  # without slots, for where keys stand is worked out once
class SettingsFile:
    """A file's path, text and content."""

    path: Path | None
    text: str
    content: dict[str, Any]

    @cached_property
    def lines(self) -> dict[KeyPath, int]:
        """On which each key path begins, 1-based. Only who has found a mistake asks."""
        lines: dict[KeyPath, int] = {}
        if self.path is not None:
            _walk(load_yaml(self.text, self.path)[0], (), lines, self.path)
        return lines

    def where(self, path: Sequence[str | int]) -> str:
        """`file:line`, of the nearest enclosing key that stands in the file."""
        for length in range(len(path), -1, -1):
            line = self.lines.get(tuple(path[:length]))
            if line is not None:
                return f"{self.path}:{line}"
        return str(self.path) if self.path else "the settings"


def no_file() -> SettingsFile:
    return SettingsFile(None, "", {})


def key_text(path: Sequence[str | int]) -> str:
    """`workloads[0].replicas.min`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def read_settings_file(path: Path) -> SettingsFile:
    """Content and key lines of a YAML mapping.

    Raises:
        HarmonyError: unreadable, no YAML or too much of it, a key twice, or no mapping at the top (exit code 2).
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise HarmonyError(f"There is no file {path}. `harmony init` writes one to start from.", 2) from error
    except (OSError, UnicodeDecodeError) as error:
        raise HarmonyError(f"Cannot read {path}: {getattr(error, 'strerror', None) or error}.", 2) from error
    try:
        content = read_plain(text)
    except NotPlainError:
        root, content = load_yaml(text, path)
        _walk(root, (), {}, path)
    if content is None:
        return SettingsFile(path, text, {})
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise HarmonyError(f"{path}: the file must hold keys and values, such as `brokers: 127.0.0.1:9092`.", 2)
    return SettingsFile(path, text, content)


def _walk(node: yaml.Node | None, at: KeyPath, lines: dict[KeyPath, int], path: Path) -> None:
    """Note the line of every key; raises HarmonyError for one that is given twice."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            name = str(key.value)
            here = (*at, name)
            line = key.start_mark.line + 1
            if here in lines:
                raise HarmonyError(f"{path}:{line}: {key_text(here)} is given twice (first on line {lines[here]}).", 2)
            lines[here] = line
            _walk(value, here, lines, path)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            lines[(*at, index)] = value.start_mark.line + 1
            _walk(value, (*at, index), lines, path)
