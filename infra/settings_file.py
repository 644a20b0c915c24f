"""Read a YAML file with the line of every key, so that a mistake is named where it stands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from infra.errors import HarmonyError

KeyPath = tuple[str | int, ...]
_TEXT, _LIST, _MAPPING = (f"tag:yaml.org,2002:{kind}" for kind in ("str", "seq", "map"))


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
        HarmonyError: unreadable, no YAML, a key twice, or no mapping at the top (exit code 2).
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise HarmonyError(f"There is no file {path}. `harmony init` writes one to start from.", 2) from error
    except (OSError, UnicodeDecodeError) as error:
        raise HarmonyError(f"Cannot read {path}: {getattr(error, 'strerror', None) or error}.", 2) from error
    try:
        root, content = _load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise HarmonyError(f"{path}{_mark(error)}: not valid YAML: {_problem(error)}.", 2) from error
    if content is None:
        return SettingsFile(path, {}, {})
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise HarmonyError(f"{path}: the file must hold keys and values, such as `brokers: 127.0.0.1:9092`.", 2)
    lines: dict[KeyPath, int] = {}
    try:
        _walk(root, (), lines, path)
    except RecursionError:
        raise HarmonyError(f"{path}: an alias refers to itself, or the nesting is far too deep.", 2) from None
    return SettingsFile(path, content, lines)


def _load(text: str) -> tuple[yaml.Node | None, Any]:
    """The nodes, which know their lines, and what they say; read by libyaml, where there is one.

    Without it a thousand workloads take four seconds of every start. Where a mistake is, Python's reader says better.
    """
    try:
        return _load_by(getattr(yaml, "CSafeLoader", yaml.SafeLoader), text)
    except yaml.YAMLError:
        return _load_by(yaml.SafeLoader, text)


def _load_by(reader: Any, text: str) -> tuple[yaml.Node | None, Any]:
    loader = reader(text)
    try:
        root = loader.get_single_node()
        return root, None if root is None else _content(root, loader)
    finally:
        loader.dispose()


def _content(root: yaml.Node, loader: Any) -> Any:
    """What the nodes say; in half the time that the loader takes where they are no more than lists, keys and values."""
    try:
        return _plain(root, loader)
    except (_NotPlainError, RecursionError):
        return loader.construct_document(root)


class _NotPlainError(Exception):
    """Merges, keys that are no text, tags of somebody's own."""


def _plain(node: yaml.Node, loader: Any) -> Any:
    if node.tag == _TEXT:
        return node.value
    if isinstance(node, yaml.ScalarNode):
        return loader.construct_object(node)
    if node.tag == _LIST:
        return [_plain(entry, loader) for entry in node.value]
    if node.tag == _MAPPING and all(key.tag == _TEXT for key, _ in node.value):
        return {key.value: _plain(value, loader) for key, value in node.value}
    raise _NotPlainError


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


def _mark(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    return f":{mark.line + 1}" if mark is not None else ""


def _problem(error: Exception) -> str:
    return str(getattr(error, "problem", None) or error).splitlines()[0].rstrip(".")
