"""The quick reader of YAML that is no more than lists, keys and values: one pass, and nothing built but what it says.

PyYAML makes a node of each value and looks at each with several patterns: of a file with ten thousand workloads that
takes a start three times as long. What stands for something else (anchors, tags, merges), what is not as it must be,
and what is too much is left to the reader in `yaml_text`, which says where and why.
"""

from __future__ import annotations

from typing import Any, Final

import yaml

from infra.yaml_text import MOST_LEVELS, MOST_NODES, UNREADABLE, fastest_loader

_TEXT: Final = "tag:yaml.org,2002:str"


class NotPlainError(Exception):
    """Something for the thorough reader."""


def read_plain(text: str) -> Any:
    """What the text says, no key of a mapping given twice; None of an empty one.

    Raises:
        NotPlainError: it is more than lists, keys and values, or not YAML at all.
    """
    reader = _Reader(text)
    try:
        return reader.document()
    except UNREADABLE as error:
        raise NotPlainError from error
    finally:
        reader.close()


class _Reader:
    def __init__(self, text: str) -> None:
        self._loader: Any = fastest_loader()(text)
        self._next = self._loader.get_event
        self._left = MOST_NODES
        self._meant: dict[str, Any] = {}  # what stands without quotes, mostly the same few words and numbers

    def close(self) -> None:
        self._loader.dispose()

    def document(self) -> Any:
        self._next()  # of the stream
        if type(self._next()) is yaml.StreamEndEvent:
            return None
        said = self._value(self._next(), MOST_LEVELS)
        self._next()  # of the document's end
        if type(self._next()) is not yaml.StreamEndEvent:
            raise NotPlainError
        return said

    def _value(self, event: Any, levels: int) -> Any:
        """What begins with this event, of no more than so many levels."""
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
        if text not in self._meant:
            tag = self._loader.resolve(yaml.ScalarNode, text, event.implicit)
            self._meant[text] = (
                text if tag == _TEXT else self._loader.construct_object(yaml.ScalarNode(tag, text, event.start_mark))
            )
        return self._meant[text]
