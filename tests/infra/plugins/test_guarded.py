"""Calls into plug-ins: what comes back, what is cut off, what is counted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint

import pytest

from infra.observability.metrics import PrometheusMeter
from infra.plugins.guarded import Guarded, PluginFailed
from infra.settings.limits import PluginLimits
from infra.settings.plugins import Plugin

PLUGIN = Plugin("policy", "mine", "my-package", "1.2", EntryPoint("mine", "nowhere:X", "harmony.policies"))


def counted(meter: PrometheusMeter, outcome: str) -> float:
    return meter.registry.get_sample_value("harmony_plugin_calls_total", {"kind": "policy", "outcome": outcome}) or 0.0


@pytest.fixture
def meter() -> PrometheusMeter:
    return PrometheusMeter(strict=True)


@pytest.fixture
def guarded(meter: PrometheusMeter) -> Iterator[Guarded]:
    made = Guarded(PLUGIN, PluginLimits(60.0, 2, 3), meter, blameless=(KeyError,))
    yield made
    made.close()


def raising(error: BaseException) -> Callable[[], None]:
    def call() -> None:
        raise error

    return call


def test_answers_come_back_from_its_own_thread(guarded: Guarded, meter: PrometheusMeter) -> None:
    here = threading.get_ident()
    threads = {guarded.call(threading.get_ident) for _ in range(3)}
    assert len(threads) == 1
    assert here not in threads
    assert counted(meter, "ok") == 3


@pytest.mark.parametrize("error", [RuntimeError("x"), SystemExit(3), TimeoutError("its own"), StopIteration()])
def test_whatever_it_raises_is_its_failure(guarded: Guarded, meter: PrometheusMeter, error: BaseException) -> None:
    with pytest.raises(PluginFailed, match="policy mine") as failure:
        guarded.call(raising(error))
    assert failure.value.outcome == "failed"
    assert counted(meter, "failed") == 1
    assert guarded.call(lambda: 5) == 5


def test_what_it_may_raise_by_contract_is_no_failure(guarded: Guarded, meter: PrometheusMeter) -> None:
    for _ in range(5):
        with pytest.raises(KeyError):
            guarded.call(raising(KeyError("bad record")))
    assert counted(meter, "ok") == 5
    assert not guarded.breaker.open


def test_after_failures_calls_are_skipped_then_tried(guarded: Guarded, meter: PrometheusMeter) -> None:
    made = 0

    def broken() -> None:
        nonlocal made
        made += 1
        raise RuntimeError("broken")

    for _ in range(2 + 3):
        with pytest.raises(PluginFailed):
            guarded.call(broken)
    assert made == 2
    assert counted(meter, "skipped") == 3
    assert guarded.call(lambda: "well again") == "well again"


def test_a_call_that_takes_too_long_is_left_alone_until_it_ends(meter: PrometheusMeter) -> None:
    guarded = Guarded(PLUGIN, PluginLimits(0.05, 10, 3), meter)
    go_on, calls = threading.Event(), []

    def slow() -> str:
        calls.append("slow")
        go_on.wait()
        return "late"

    with pytest.raises(PluginFailed, match=r"no answer within 0\.05 s") as failure:
        guarded.call(slow)
    assert failure.value.outcome == "timeout"
    with pytest.raises(PluginFailed, match="still runs"):
        guarded.call(lambda: calls.append("second"))
    late = guarded._late
    assert late is not None
    go_on.set()
    assert late.result(60) == "late"
    # A machine under load may need more than the limit for any answer at all.
    guarded._limit_s = 60.0
    assert guarded.call(lambda: "next") == "next"
    assert calls == ["slow"]
    assert (counted(meter, "timeout"), counted(meter, "skipped"), counted(meter, "ok")) == (1, 1, 1)
    guarded.close()
