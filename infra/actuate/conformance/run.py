"""extracted"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from infra.actuate.conformance.kit import ActuatorSubject, Bench, Case, Needs, Result, Violation


def run_kit(
    make: Callable[[], ActuatorSubject],
    *,
    only: Iterable[str] | None = None,
    seed: int = 0,
    runs: int = 25,
) -> list[Result]:
    """Run every case on a subject of its own.

    Args:
        make: a new subject.
        only: names of cases; None = all.
        seed, runs: of the random sequences.
    """
    from infra.actuate.conformance.cases import CASES
    from infra.actuate.conformance.laws import random_case

    cases: dict[str, Case] = dict(CASES)
    cases |= {f"random_sequence_{seed + i}": random_case(seed + i) for i in range(runs)}
    case_names = set(cases) if only is None else set(only)
    return [_run(name, case, make) for name, case in cases.items() if name in case_names]


def _run(name: str, case: Case, make: Callable[[], ActuatorSubject]) -> Result:
    subject = make()
    try:
        case(Bench(subject))
    except Needs as missing:
        return Result(name, "skipped", f"the actuator has no ability called {missing}")
    except Violation as violation:
        return Result(name, "failed", str(violation))
    finally:
        subject.close()
    return Result(name, "passed", "")
