"""The commands that claims are measured by. Each appends `--json FILE` and writes one record."""

from __future__ import annotations

from tests.claims.claim import Cost, Measurement

INGEST = Measurement(
    "ingest",
    "harmony bench ingest",
    "minutes",
    short="harmony bench ingest --rounds 1 --form single --samples 102400",
)
PLAN = Measurement("plan", "harmony bench plan", "minutes", short="harmony bench plan --rounds 1")
PLAN_FEW_PATHS = Measurement("plan-few-paths", "harmony bench plan --workloads 100 --rounds 1 --paths 16", "seconds")
EXHAUSTIVE = Measurement("plan-exhaustive", "python -m tests.claims.exhaustive_plan", "seconds")
INFERENCE = Measurement(
    "inference", "harmony bench inference", "minutes", short="harmony bench inference --rounds 1 --batches 1,64"
)
SCALE = Measurement("scale", "harmony bench scale", "hours")
LATENCY = Measurement("latency", "harmony bench latency --workloads 100,300,1000", "hours")
LATENCY_10000 = Measurement("latency-10000", "harmony bench latency --workloads 10000 --slots 4", "hours")
RECOVERY = Measurement("recovery", "harmony bench recovery --workloads 100,1000", "minutes")
RECOVERY_10000 = Measurement("recovery-10000", "harmony bench recovery --workloads 10000", "hours")
REPLAY_CELLS = Measurement("replay_cells", "python -m tests.bench.replay_cells {data} {folder} --jobs 2", "hours")
REPLAY_DRAWS = Measurement(
    "replay_draws", "python -m tests.bench.replay_draws {data} {folder} --leads 100 --jobs 2", "hours"
)


def _checks(record: str, cost: Cost, claim: tuple[str, ...], control: tuple[str, ...]) -> Measurement:
    """Tests as a measurement."""
    return Measurement(record, f"{_CHECKS} --claim {' '.join(claim)} --control {' '.join(control)}", cost)


_CHECKS = "python -m tests.claims.checks"
_KILLS = "tests/faults/test_memory_kills.py::test_deaths_and_zombies_anywhere_change_nothing"
_KILLS_CONTROL = (
    "--control tests/faults/test_memory_kills.py::test_a_commit_record_before_its_outputs_is_found_out_in_memory"
)
KILLS = Measurement(
    "kills-in-memory",
    f"{_CHECKS} --claim {_KILLS} {_KILLS_CONTROL}",
    "minutes",
    short=f"{_CHECKS} --claim '{_KILLS}[1]' {_KILLS_CONTROL}",
)
KILLS_ON_KAFKA = _checks(
    "kills-on-kafka",
    "minutes",
    ("tests/faults/test_kills.py::test_kills_change_nothing",),
    ("tests/faults/test_mutation.py::test_a_commit_record_before_its_outputs_is_found_out",),
)
REPRODUCIBLE = _checks(
    "reproducible",
    "seconds",
    (
        "tests/golden/test_golden_records.py::test_the_same_input_gives_the_same_bytes_or_another_version",
        "tests/golden/test_golden_records.py::test_what_was_written_then_is_read_to_the_same_values",
        "tests/agents/decide/test_guard_oracle.py::test_decisions_are_what_the_guards_say_when_told_again",
    ),
    ("tests/golden/test_golden_records.py::test_a_changed_byte_does_not_pass_for_the_stored_record",),
)
BAD_INPUT = _checks(
    "bad-input",
    "seconds",
    ("tests/fuzz/test_fuzz.py::test_no_bytes_make_a_reader_raise",),
    (
        "tests/fuzz/test_fuzz.py::test_a_reader_that_raises_is_found",
        "tests/fuzz/test_fuzz.py::test_a_reader_that_is_held_up_is_found",
    ),
)
COMMANDS = _checks(
    "commands",
    "seconds",
    (
        "tests/agents/actuation/test_apply_guard.py::test_any_order_with_repeats_and_restarts_ends_in_the_newest_count",
        "tests/infra/actuate/test_conformance.py::test_the_kit_passes",
    ),
    (
        "tests/infra/actuate/test_conformance.py::test_the_kit_finds_a_broken_guard_by_case_and_by_random_history",
        "tests/infra/actuate/test_conformance.py::test_the_kit_finds_one_who_gives_the_last_value_for_ever",
        "tests/infra/actuate/test_conformance.py::test_the_kit_finds_one_who_remembers_nothing",
    ),
)
UNSAFE_CODE = _checks(
    "unsafe-code",
    "seconds",
    ("tests/test_nothing_unsafe.py::test_no_file_does_what_is_unsafe",),
    ("tests/test_nothing_unsafe.py::test_the_search_finds",),
)
_EVALUATE = "python -m tests.claims.evaluation"
FISHER = Measurement(
    "fisher",
    f"{_EVALUATE} evaluate --protocol fisher --input-lengths 72 --models network,served,ridge_scaled,last,clim,snaive",
    "minutes",
)
ROLLING_ZERO_SHOT = Measurement(
    "rolling-zero-shot",
    f"{_EVALUATE} evaluate --protocol rolling --track zeroshot --draws 200 --models network,served,served_pool",
    "minutes",
)
ROLLING = Measurement(
    "rolling",
    f"{_EVALUATE} evaluate --protocol rolling --draws 100 --models served_pool,served_ridge,ewma,last",
    "minutes",
)
FISHER_ADAPTED = Measurement(
    "fisher-adapted",
    f"{_EVALUATE} evaluate --protocol fisher --input-lengths 72 --models adapted_network",
    "minutes",
)
ABLATIONS = Measurement("ablations", f"{_EVALUATE} ablate --out {{folder}} --steps 400 --seeds 3", "hours")
