"""Read a YAML file with the line of every key, so that a mistake is named where it stands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from infra.errors import HarmonyError
from infra.yaml_text import load_yaml

KeyPath = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """A file's content, and the line on which each key path begins (1-based)."""

    path: Path | None
    content: dict[str, Any]
    lines: dict[KeyPath, int]

    def where(self, path: Sequence[str | int]) -> str:
        """`file:line`, of the nearest enclosing key that stands in the file."""
        for length in range(len(path), -1, -1):
            line = self.lines.get(tuple(path[:length]))
            if line is not None:
                return f"{self.path}:{line}"
        return str(self.path) if self.path else "the settings"


def no_file() -> SettingsFile:
    return SettingsFile(None, {}, {})


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
    root, content = load_yaml(text, path)
    if content is None:
        return SettingsFile(path, {}, {})
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise HarmonyError(f"{path}: the file must hold keys and values, such as `brokers: 127.0.0.1:9092`.", 2)
    lines: dict[KeyPath, int] = {}
    _walk(root, (), lines, path)
    return SettingsFile(path, content, lines)


def _walk(node: yaml.Node | None, at: KeyPath, lines: dict[KeyPath, int], path: Path) -> None:
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
