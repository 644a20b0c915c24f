"""Open transactions as a watch sees them: since when a partition is held up, and from which offset on."""

from __future__ import annotations

from types import SimpleNamespace

from aiokafka.consumer.fetcher import READ_COMMITTED, READ_UNCOMMITTED
from hypothesis import given
from hypothesis import strategies as st

from streams.runtime.transactions import LogEnd, OpenTransaction, TransactionWatch, overdue
from streams.runtime.transport import fetched_ends, unisolated

PLACES = [("t", 0), ("t", 1), ("u", 0)]
ends = st.builds(lambda stable, more: LogEnd(stable, stable + more), st.integers(0, 3), st.integers(-1, 2))
looks = st.lists(st.tuples(st.floats(0.0, 40.0), st.dictionaries(st.sampled_from(PLACES), ends)), max_size=12)


@given(looks)
def test_a_transaction_is_as_old_as_the_first_of_the_looks_in_a_row_that_show_it(
    history: list[tuple[float, dict[tuple[str, int], LogEnd]]],
) -> None:
    watch, now_s = TransactionWatch(), 0.0
    seen: list[tuple[float, dict[tuple[str, int], LogEnd]]] = []
    for lapse_s, found in history:
        now_s += lapse_s
        seen.append((now_s, found))
        expected = []
        for place, end in sorted(found.items()):
            if end.high_watermark <= end.last_stable:
                continue
            since_s = now_s
            for at_s, before in reversed(seen):
                same = before.get(place)
                if same is None or same.last_stable != end.last_stable or same.num_unstable == 0:
                    break
                since_s = at_s
            waiting = end.high_watermark - end.last_stable
            expected.append(OpenTransaction(*place, end.last_stable, waiting, now_s - since_s))
        assert watch.look(found, now_s) == expected
        assert overdue(expected) == [one for one in expected if one.open_s > 30.0]


def test_the_sentence_names_place_age_and_remedy() -> None:
    sentence = OpenTransaction("h.telemetry.requests", 2, 5012, 1234, 95.4).sentence("k1:9092,k2:9092")
    assert sentence == (
        "h.telemetry.requests/2: 1234 records from offset 5012 on wait for a transaction that has been open for 95 s; "
        "its producer must commit or abort it, else abort it with "
        "`kafka-transactions.sh --bootstrap-server k1:9092,k2:9092 "
        "abort --topic h.telemetry.requests --partition 2 --start-offset 5012`"
    )


def test_ends_are_those_of_the_last_fetch_and_questions_without_isolation_leave_the_fetcher_as_it_is() -> None:
    stable, high = {0: 4, 1: None, 2: 0}, {0: 9, 1: None, 2: 0}
    fetcher = SimpleNamespace(_isolation_level=READ_COMMITTED, other=object())
    consumer = SimpleNamespace(
        _fetcher=fetcher,
        last_stable_offset=lambda tp: stable[tp.partition],
        highwater=lambda tp: high[tp.partition],
    )
    tps = [SimpleNamespace(topic="t", partition=p) for p in stable]
    assert fetched_ends(consumer, tps) == {("t", 0): LogEnd(4, 9), ("t", 2): LogEnd(0, 0)}
    asking = unisolated(consumer)
    assert (asking._isolation_level, asking.other) == (READ_UNCOMMITTED, fetcher.other)
    assert fetcher._isolation_level == READ_COMMITTED
