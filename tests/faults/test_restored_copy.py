"""A backup is a copy of the topics: workers that are started on it go on as those of the original do, byte for byte."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.faults.conftest import Hunt
from tests.faults.exactness import Proof, compare, entries_of
from tests.faults.hunted import WAIT_S, Hunted
from tests.faults.logs import copy_log, ends_of
from tests.faults.nursery import Nursery

pytestmark = pytest.mark.faults

# As the documentation says: nothing may be newer than what it refers to, and telemetry comes last.
IN_ORDER = ("commits", "plans", "pages_coarse", "pages")
TELEMETRY = ("telemetry_gpu", "telemetry_requests")
# Pages and plans carry the stamps of the broker, which are the copy's own; what is answered does not depend on them.
ANSWERS = ("forecasts", "decisions", "commands")
SLOTS_BEFORE, SLOTS_AFTER = 24, 8


class Backup:
    """Where the state's topics ended when they were copied, one after the other, from workers at work."""

    def __init__(self, original: Hunted) -> None:
        self.original = original
        self.ends = {name: ends_of(original.bootstrap, getattr(original.topics, name)) for name in IN_ORDER}

    def restore(self, name: str, nursery: Nursery, home: Path, without: str | None = None) -> Hunted:
        """Topics of the copy, with all telemetry that there is by now; `without` leaves a topic empty."""
        made = Hunted(self.original.bootstrap, f"{name}.", home / name, 0, nursery, self.original.stream)
        made.slot = self.original.slot
        for topic in (*IN_ORDER, *TELEMETRY):
            if topic != without:
                source, target = (getattr(p.topics, topic) for p in (self.original, made))
                copy_log(self.original.bootstrap, source, target, self.ends.get(topic))
        return made


def test_a_copy_of_the_topics_goes_on_as_the_original_does(hunt: Hunt, nursery: Nursery, tmp_path: Path) -> None:
    original = hunt()
    original.in_table = False
    original.begin()
    original.publish_slots(SLOTS_BEFORE)
    decided = lambda: original.progress.reached(original.last_slot - SLOTS_AFTER)  # noqa: E731
    original.wait(decided, "work in full swing", publish=False)
    backup = Backup(original)
    first_ts_ms = (original.slot + 1) * original.stream.step_ms
    original.publish_slots(SLOTS_AFTER)
    original.finish()

    restored, torn = backup.restore("restored", nursery, tmp_path), None
    try:
        restored.begin()
        restored.settle()
        restored.end()
        proof = Proof()
        for name in ANSWERS:
            # It answers from its last commit record on, so there is less of it, and all of it is the original's.
            compare(restored, original, name, "all", proof, ends_of(restored.bootstrap, getattr(restored.topics, name)))
            went_on, goes_on = (newest(p, name, first_ts_ms) for p in (original, restored))
            assert goes_on == went_on, name
            assert len(goes_on) >= SLOTS_AFTER * (name != "commands"), name
        print(proof)

        # A commit record without the plans that it was made of is refused, whatever else is there.
        torn = backup.restore("torn", nursery, tmp_path, without="plans")
        torn.begin()
        process = torn.running["w0"]
        assert process.wait(WAIT_S) == 1
        assert "plans/0: the state goes on at offset" in torn.last_words()
    finally:
        for pipeline in (restored, torn):
            if pipeline is not None:
                pipeline.end_all()


def newest(pipeline: Hunted, name: str, first_ts_ms: int) -> set[tuple[str, int]]:
    """Workloads and origins of what was answered from this origin on."""
    moment = "issued_ts_ms" if name == "commands" else "origin_ts_ms"
    bodies = [json.loads(e.value or b"") for e in entries_of(pipeline, getattr(pipeline.topics, name))]
    return {(body["workload"], body[moment]) for body in bodies if body[moment] >= first_ts_ms}
