"""Who is still served in a flood of names: workloads that a page held before the record at hand was read."""

from __future__ import annotations

from collections.abc import Sequence

from streams.ingest.series import Roster

_FROM_THE_START = -1


class Regulars:
    """Workloads of the last L pages, as they stood at any record that may be read.

    A worker that starts knows its newest pages before it reads, once more, records that lie before the end of them.
    It has to judge these as the life did that wrote the pages: what it took and refused is in the next ones.

    Args:
        roster: workloads by the newest page that holds them.
        context_steps: L.
    """

    def __init__(self, roster: Roster, context_steps: int) -> None:
        self._roster = roster
        self._context_steps = context_steps
        self._read_again_to = -1
        # Of workloads of pages that end behind where reading starts: (end offset, slot) of these pages, and where there
        # is one, of the newest page before them.
        self._pages: dict[str, list[tuple[int, int]]] = {}

    def remember(self, workloads: Sequence[str], slot: int, end_offset: int, resume_offset: int) -> None:
        """Take in a page, oldest first, before the roster does; reading will start at `resume_offset`."""
        if end_offset < resume_offset:
            return
        self._read_again_to = end_offset
        for workload in workloads:
            if workload not in self._pages:
                self._pages[workload] = [(_FROM_THE_START, self._roster.newest_slot(workload))]
            self._pages[workload].append((end_offset, slot))

    def hold(self, workload: str, slot: int, offset: int) -> bool:
        """Whether the workload was in one of the L pages before this slot when the record at this offset was read."""
        if offset <= self._read_again_to and workload in self._pages:
            newest = max(page for end_offset, page in self._pages[workload] if end_offset < offset)
        else:
            newest = self._roster.newest_slot(workload)
        return newest >= slot - self._context_steps
