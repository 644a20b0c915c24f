"""Which page to resume from: the newest one whose predecessors are all there."""

from __future__ import annotations

from collections.abc import Iterable

from streams.catalogue import Source
from streams.log import ContractBroken
from streams.pages.page import Page


def newest_chain(
    pages: Iterable[tuple[Page, str]], source: Source, partition: int, context_steps: int
) -> list[tuple[Page, str]]:
    """The pages to restore from, oldest first; empty when the log holds none.

    Args:
        pages: (page, digest) in log order; repeats are welcome, holes and torn ends too.
        source, partition: whose chain this is.
        context_steps: L; a chain is long enough with L pages, or when it reaches the very first page.

    Raises:
        ContractBroken: pages exist but none has a complete chain, or they belong to another chain.
    """
    found: dict[tuple[int, str], Page] = {}
    keep = 4 * context_steps
    for page, digest in pages:
        if (page.source, page.partition) != (source, partition):
            raise ContractBroken(
                f"a page of {page.source}/{page.partition} among those of {source}/{partition}; "
                "run `harmony state reset`"
            )
        found.setdefault((page.slot, digest), page)
        if len(found) > 2 * keep:
            for identity in sorted(found)[:-keep]:
                del found[identity]
    # A stable sort: of two pages of one slot the first in the log is tried first, as its readers did.
    for identity in sorted(found, key=lambda i: i[0], reverse=True):
        chain = _chain_to(identity, found, context_steps)
        if len(chain) == context_steps or chain[-1][0].prev is None:
            return chain[::-1]
    if found:
        raise ContractBroken(
            f"pages of {source}/{partition} exist, but none has its {context_steps} predecessors in reach: raise the "
            "pages topic's retention.bytes or lower context_steps; where pages were lost, accept a new start with "
            "`harmony state reset`"
        )
    return []


def _chain_to(identity: tuple[int, str], found: dict[tuple[int, str], Page], length: int) -> list[tuple[Page, str]]:
    """The page and its predecessors as far as they are there, newest first, at most `length`."""
    chain = [(found[identity], identity[1])]
    while len(chain) < length:
        page = chain[-1][0]
        if page.prev is None or page.prev_digest is None or (page.prev, page.prev_digest) not in found:
            break
        chain.append((found[page.prev, page.prev_digest], page.prev_digest))
    return chain
