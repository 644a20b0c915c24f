"""Reads YAML from files that people and machines write, with the line of every key for error messages.

Two readers give the same values. `read_plain` makes one pass over libyaml's events and reads lists, keys and values
only. It takes about a sixth of the time of PyYAML's C loader, which makes a node of each value. `load_yaml` reads all
of YAML, keeps the nodes with their lines, and says what is wrong. A document with too many levels or values is refused
before anything is built of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import yaml

from infra.console.errors import HarmonyError

# The deepest file that means something has ten levels; libyaml goes down one level of C's stack for each.
MAX_LEVELS = 32
# Ten thousand workloads with everything that can be said of them have half as many.
MAX_NODES = 1_000_000
# Of a value that its tag does not fit, such as `!!int ''`, PyYAML's constructors raise whatever comes.
READ_ERRORS = (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError)


def fastest_loader() -> Any:
    """Return libyaml's loader where PyYAML has it, else the Python one; both give the same values."""
    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def load_yaml(text: str, path: Path) -> tuple[yaml.Node | None, Any]:
    """Return the nodes, which know their lines, and the values; None and None for an empty text.

    libyaml reads the text first, because it is many times faster. Where it fails, Python's reader reads it again,
    because its messages are better.

    Args:
        path: for messages.

    Raises:
        HarmonyError: no YAML, nested too deep, or too much of it once aliases are followed (exit code 2).
    """
    fast = fastest_loader()
    try:
        _check_size(fast(text), path)
        try:
            return _load_by(fast, text)
        except yaml.YAMLError:
            return _load_by(yaml.SafeLoader, text)
    except READ_ERRORS as error:
        raise HarmonyError(f"{path}{_mark(error)}: not valid YAML: {_problem(error)}.", 2) from error


@dataclass(slots=True)
class _OpenCollection:
    """A list or mapping that is being read.

    Attributes:
        anchor: its YAML anchor, if it has one.
        before: nodes of the document before it.
        levels: deepest nesting within it so far.
    """

    anchor: str | None
    before: int
    levels: int = 0


def _check_size(loader: Any, path: Path) -> None:
    """Count levels and nodes before anything is built of them, each alias as all that it stands for."""
    nodes = 0
    opened = [_OpenCollection(None, 0)]
    anchors: dict[str, tuple[int, int]] = {}
    try:
        while loader.check_event():
            event = loader.get_event()
            levels = 0
            if isinstance(event, yaml.CollectionStartEvent):
                opened.append(_OpenCollection(event.anchor, nodes))
                nodes += 1
                if event.anchor:
                    # What refers to itself has no end.
                    anchors[event.anchor] = MAX_NODES, MAX_LEVELS
            elif isinstance(event, yaml.CollectionEndEvent):
                done = opened.pop()
                levels = done.levels + 1
                if done.anchor:
                    anchors[done.anchor] = nodes - done.before, levels
            elif isinstance(event, yaml.AliasEvent):
                size, levels = anchors.get(str(event.anchor), (1, 0))
                nodes += size
            elif isinstance(event, yaml.ScalarEvent):
                nodes += 1
                if event.anchor:
                    anchors[event.anchor] = 1, 0
            opened[-1].levels = max(opened[-1].levels, levels)
            if len(opened) - 1 + levels > MAX_LEVELS:
                raise HarmonyError(f"{path}{_at(event)}: nested deeper than {MAX_LEVELS} levels.", 2)
            if nodes > MAX_NODES:
                raise HarmonyError(f"{path}{_at(event)}: more than {MAX_NODES:,} values, with what aliases repeat.", 2)
    except yaml.YAMLError:
        # The reader that builds says where and why.
        return
    finally:
        loader.dispose()


def _load_by(reader: Any, text: str) -> tuple[yaml.Node | None, Any]:
    loader = reader(text)
    try:
        root = loader.get_single_node()
        return root, None if root is None else loader.construct_document(root)
    finally:
        loader.dispose()


def _at(event: Any) -> str:
    return f":{event.start_mark.line + 1}"


def _mark(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    return f":{mark.line + 1}" if mark is not None else ""


def _problem(error: Exception) -> str:
    problem = str(getattr(error, "problem", None) or error).strip() or type(error).__name__
    return problem.splitlines()[0].rstrip(".")


# The quick reader. Anchors, tags, merges, mistakes and too large documents are left to `load_yaml`, which names the
# line and the reason.


_TEXT: Final = "tag:yaml.org,2002:str"


class NotPlainError(Exception):
    """The text is more than lists, keys and values, so that `load_yaml` must read it."""


def read_plain(text: str) -> Any:
    """Return the values of the text, in which no key of a mapping is given twice; None for an empty text.

    Raises:
        NotPlainError: it is more than lists, keys and values, or not YAML at all.
    """
    reader = _Reader(text)
    try:
        return reader.document()
    except READ_ERRORS as error:
        raise NotPlainError from error
    finally:
        reader.close()


class _Reader:
    def __init__(self, text: str) -> None:
        self._loader: Any = fastest_loader()(text)
        self._next = self._loader.get_event
        self._left = MAX_NODES
        self._scalars: dict[str, Any] = {}  # values of unquoted texts, which mostly repeat

    def close(self) -> None:
        self._loader.dispose()

    def document(self) -> Any:
        self._next()  # of the stream
        if type(self._next()) is yaml.StreamEndEvent:
            return None
        content = self._value(self._next(), MAX_LEVELS)
        self._next()  # of the document's end
        if type(self._next()) is not yaml.StreamEndEvent:
            raise NotPlainError
        return content

    def _value(self, event: Any, levels: int) -> Any:
        """Return the value that begins with this event and has at most `levels` levels."""
        kind = type(event)
        self._left -= 1
        if kind is yaml.AliasEvent or event.anchor is not None or event.tag is not None or self._left < 0:
            raise NotPlainError
        if kind is yaml.ScalarEvent:
            return self._scalar(event)
        if not levels:
            raise NotPlainError
        if kind is yaml.SequenceStartEvent:
            entries = []
            while type(entry := self._next()) is not yaml.SequenceEndEvent:
                entries.append(self._value(entry, levels - 1))
            return entries
        mapping: dict[str, Any] = {}
        while type(entry := self._next()) is not yaml.MappingEndEvent:
            name = self._value(entry, 0)
            if type(name) is not str or name in mapping:
                raise NotPlainError
            mapping[name] = self._value(self._next(), levels - 1)
        return mapping

    def _scalar(self, event: Any) -> Any:
        text: str = event.value
        if not event.implicit[0]:
            return text
        if text not in self._scalars:
            tag = self._loader.resolve(yaml.ScalarNode, text, event.implicit)
            self._scalars[text] = (
                text if tag == _TEXT else self._loader.construct_object(yaml.ScalarNode(tag, text, event.start_mark))
            )
        return self._scalars[text]


KeyPath = tuple[str | int, ...]


@dataclass(frozen=True)  # without slots, for where keys stand is worked out once
class SettingsFile:
    """A file's path, text and content."""

    path: Path | None
    text: str
    content: dict[str, Any]

    @cached_property
    def lines(self) -> dict[KeyPath, int]:
        """Line of each key path, 1-based; worked out only for an error message."""
        lines: dict[KeyPath, int] = {}
        if self.path is not None:
            _add_lines(load_yaml(self.text, self.path)[0], (), lines, self.path)
        return lines

    def where(self, path: Sequence[str | int]) -> str:
        """Return `file:line` of the key, or of the nearest enclosing key that stands in the file."""
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
        _add_lines(root, (), {}, path)
    if content is None:
        return SettingsFile(path, text, {})
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise HarmonyError(f"{path}: the file must hold keys and values, such as `brokers: 127.0.0.1:9092`.", 2)
    return SettingsFile(path, text, content)


def _add_lines(node: yaml.Node | None, at: KeyPath, lines: dict[KeyPath, int], path: Path) -> None:
    """Note the line of every key; raises HarmonyError for one that is given twice."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            name = str(key.value)
            here = (*at, name)
            line = key.start_mark.line + 1
            if here in lines:
                raise HarmonyError(f"{path}:{line}: {key_text(here)} is given twice (first on line {lines[here]}).", 2)
            lines[here] = line
            _add_lines(value, here, lines, path)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            lines[(*at, index)] = value.start_mark.line + 1
            _add_lines(value, (*at, index), lines, path)
