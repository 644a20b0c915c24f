"""Chains of pages: joining those of both sources slot by slot, and finding the newest complete one to restore from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from streams.catalogue import SOURCES, Source
from streams.log import ContractBroken
from streams.pages.page import Page

MAX_WAITING_ROWS: Final = 1 << 18  # some 50 MB


@dataclass(frozen=True, slots=True)
class JoinedSlot:
    """The pages of one slot. A source that had no page yet, or jumped over the slot, is absent."""

    slot: int
    pages: dict[Source, Page]


class PageJoin:
    """Takes pages in log order and yields slots in ascending order. It needs no timeouts: ticks close silent sources.

    Nothing is joined before every source has a page, and a tick is enough for one. So the first slots do not depend on
    which source's pages were written first: a slot before the first page of a source is joined without that source.

    Only what waits is limited. Once the pages at hand have `max_waiting_rows`, a source without any page counts as
    absent. Later pages of slots that were joined without it are returned as stragglers: they are stored, but not
    decided on again, and their controls go with the next plan.

    Args:
        max_waiting_rows: rows of workloads that may wait for the first page of a source; a page counts as one more.
        sources: whose chains there are.
    """

    def __init__(self, max_waiting_rows: int = MAX_WAITING_ROWS, sources: Sequence[Source] = SOURCES) -> None:
        self.joined: int | None = None
        self._oldest: int | None = None
        self._sources = tuple(sources)
        self._max_waiting_rows = max_waiting_rows
        self._waiting_rows = 0
        self._closed: dict[Source, int] = {}
        self._digests: dict[Source, str] = {}
        self._pending: dict[int, dict[Source, tuple[Page, int]]] = {}

    def restore(self, joined: int | None, oldest: int | None = None) -> None:
        """Continue after the slots up to `joined`; their pages may be offered again and are stragglers.

        Pages before `oldest` are skipped: a paused worker may have repeated an old page where reading begins, and the
        pages after it in the log are not its successors.
        """
        self.joined, self._oldest = joined, oldest

    def offer(self, page: Page, digest: str, first_offset: int) -> Page | None:
        """Take a page; returns it when it is a straggler, None when it waits for its slot or is a duplicate.

        Raises:
            ContractBroken: the chain of its source is torn.
        """
        if self._oldest is not None and page.slot < self._oldest:
            return None
        closed = self._closed.get(page.source)
        if closed is not None:
            if page.slot <= closed:
                return None
            if page.prev != closed or page.prev_digest != self._digests[page.source]:
                raise ContractBroken(
                    f"pages/{page.partition}: the {page.source} chain is torn: slot {page.slot} follows {page.prev}, "
                    f"but {closed} was read last; restore the topic, or accept a new start with `harmony state reset`"
                )
        self._closed[page.source] = page.slot
        self._digests[page.source] = digest
        if self.joined is not None and page.slot <= self.joined:
            return page
        self._pending.setdefault(page.slot, {})[page.source] = (page, first_offset)
        self._waiting_rows += 1 + len(page.workloads)
        return None

    def ready(self) -> Iterator[JoinedSlot]:
        """Slots that both sources have closed, in order; each is joined once."""
        while self._pending:
            slot = min(self._pending)
            if any(self._lacks(source, slot) for source in self._sources):
                return
            waiting = self._pending.pop(slot)
            # Always in the same order, because it affects the bytes of plans and decisions.
            pages = {source: waiting[source][0] for source in sorted(waiting)}
            self._waiting_rows -= sum(1 + len(page.workloads) for page in pages.values())
            self.joined = slot
            yield JoinedSlot(slot, pages)

    def _lacks(self, source: Source, slot: int) -> bool:
        closed = self._closed.get(source)
        if closed is None:
            return self.joined is None and self._waiting_rows < self._max_waiting_rows
        return closed < slot

    def closed_slots(self) -> dict[Source, int]:
        """Newest closed slot of each source with pages."""
        return dict(self._closed)

    def first_pending_offset(self) -> int | None:
        """Offset from which every waiting page can be read again."""
        return min((offset for pages in self._pending.values() for _, offset in pages.values()), default=None)


def newest_chain(
    pages: Iterable[tuple[Page, str]], source: Source, partition: int, context_steps: int
) -> list[tuple[Page, str]]:
    """The newest page with all its predecessors, oldest first; empty when the log holds no page.

    Args:
        pages: (page, digest) in log order; repeats, holes and torn ends are allowed.
        source, partition: whose chain this is.
        context_steps: L; a chain is long enough with L pages, or when it reaches the very first page.

    Raises:
        ContractBroken: pages exist but none has a complete chain, or they belong to another chain.
    """
    page_of: dict[tuple[int, str], Page] = {}
    keep = 4 * context_steps
    for page, digest in pages:
        if (page.source, page.partition) != (source, partition):
            raise ContractBroken(
                f"a page of {page.source}/{page.partition} among those of {source}/{partition}; "
                "run `harmony state reset`"
            )
        page_of.setdefault((page.slot, digest), page)
        if len(page_of) > 2 * keep:
            for identity in sorted(page_of)[:-keep]:
                del page_of[identity]
    # A stable sort: of two pages of one slot the first in the log is tried first, like in every reader.
    for identity in sorted(page_of, key=lambda i: i[0], reverse=True):
        chain = _chain_to(identity, page_of, context_steps)
        if len(chain) == context_steps or chain[-1][0].prev is None:
            return chain[::-1]
    if page_of:
        raise ContractBroken(
            f"pages of {source}/{partition} exist, but none has its {context_steps} predecessors in reach: raise the "
            "pages topic's retention.bytes or lower context_steps; where pages were lost, accept a new start with "
            "`harmony state reset`"
        )
    return []


def _chain_to(identity: tuple[int, str], page_of: dict[tuple[int, str], Page], length: int) -> list[tuple[Page, str]]:
    """The page and the predecessors that were found, newest first, at most `length`."""
    chain = [(page_of[identity], identity[1])]
    while len(chain) < length:
        page = chain[-1][0]
        if page.prev is None or page.prev_digest is None or (page.prev, page.prev_digest) not in page_of:
            break
        chain.append((page_of[page.prev, page.prev_digest], page.prev_digest))
    return chain
