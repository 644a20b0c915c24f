"""YAML from files that people and machines write: what it says, and its nodes; hostile ones are refused unread."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from infra.console.errors import HarmonyError

# The deepest file that means something has ten levels; libyaml goes down one level of C's stack for each.
MOST_LEVELS = 32
# Ten thousand workloads with everything that can be said of them have half as many.
MOST_NODES = 1_000_000
# Of a value that its tag does not fit, such as `!!int ''`, PyYAML's constructors raise whatever comes.
UNREADABLE = (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError)


def fastest_loader() -> Any:
    """libyaml's, where there is one; of the same meaning."""
    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def load_yaml(text: str, path: Path) -> tuple[yaml.Node | None, Any]:
    """The nodes, which know their lines, and what they say; None and None of an empty text.

    It is read by libyaml, where there is one: without it a thousand workloads take four seconds of every start. Where a
    mistake is, Python's reader says better.

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
    except UNREADABLE as error:
        raise HarmonyError(f"{path}{_mark(error)}: not valid YAML: {_problem(error)}.", 2) from error


@dataclass(slots=True)
class _Open:
    """A list or mapping that is being read: nodes before it, levels within it so far."""

    anchor: str | None
    before: int
    levels: int = 0


def _check_size(loader: Any, path: Path) -> None:
    """Count levels and nodes before anything is built of them, each alias as all that it stands for."""
    nodes = 0
    opened = [_Open(None, 0)]
    known: dict[str, tuple[int, int]] = {}
    try:
        while loader.check_event():
            event = loader.get_event()
            levels = 0
            if isinstance(event, yaml.CollectionStartEvent):
                opened.append(_Open(event.anchor, nodes))
                nodes += 1
                if event.anchor:
                    # What refers to itself has no end.
                    known[event.anchor] = MOST_NODES, MOST_LEVELS
            elif isinstance(event, yaml.CollectionEndEvent):
                done = opened.pop()
                levels = done.levels + 1
                if done.anchor:
                    known[done.anchor] = nodes - done.before, levels
            elif isinstance(event, yaml.AliasEvent):
                size, levels = known.get(str(event.anchor), (1, 0))
                nodes += size
            elif isinstance(event, yaml.ScalarEvent):
                nodes += 1
                if event.anchor:
                    known[event.anchor] = 1, 0
            opened[-1].levels = max(opened[-1].levels, levels)
            if len(opened) - 1 + levels > MOST_LEVELS:
                raise HarmonyError(f"{path}{_at(event)}: nested deeper than {MOST_LEVELS} levels.", 2)
            if nodes > MOST_NODES:
                raise HarmonyError(f"{path}{_at(event)}: more than {MOST_NODES:,} values, with what aliases repeat.", 2)
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
    said = str(getattr(error, "problem", None) or error).strip() or type(error).__name__
    return said.splitlines()[0].rstrip(".")
