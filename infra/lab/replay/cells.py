"""The named cells of the lab: policy x load x lead time in one command, `python -m infra.lab.replay.cells`.

    load, lead time -> cell -> tuned rivals, HARMONY as shipped -> table
                            -> best schedule with the same lead time (unit of the GPU-hours)

Development loads may be looked at as often as one likes. Shown loads are for the last look at a finished policy.
What does not depend on HARMONY is stored under `.cache/replay-cells`: the best schedule of a cell, and the results of
each tuned rival. The name of a stored result is a hash of all of its inputs, and of the code that computes it.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import inspect
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median
from types import ModuleType
from typing import Any, Final

from infra.console.errors import HarmonyError
from infra.lab.defaults import OUTPUT_TOKENS, PROMPT_TOKENS, TRAIN_SHARE
from infra.lab.replay import oracle, prepare, run, setting, simulation
from infra.lab.replay.job import cell_of_rate, named_policies, token_law
from infra.lab.replay.policies import catalogue, dynamo, predictive, reactive, work
from infra.lab.replay.policies.catalogue import PolicyChoice
from infra.lab.replay.policies.harmony import HARMONY_VARIANTS
from infra.lab.replay.prepare import Cell, CellOptions, trace_cell
from infra.lab.replay.results import Bound, EqualAttainment, Row, Trial, equal_attainment, equal_texts
from infra.lab.replay.run import oracle_bounds, run_policy, scored_trial, scored_trials
from infra.lab.replay.setting import Setting
from infra.lab.report import print_table, write_json
from infra.simulator import cluster, engine, ledger
from infra.simulator.arrivals import TraceError
from infra.simulator.ledger import Objective
from infra.simulator.profiles import ProfileError, named_profile
from infra.simulator.traces import read_trace

DEVELOPMENT, SHOWN = "development", "shown"
LEADS_S: Final = (30.0, 100.0, 300.0)
SHARE: Final = 0.99
_CACHE: Final = Path(".cache/replay-cells")


@dataclass(frozen=True, slots=True)
class NamedLoad:
    """One load with the setting in which it is replayed.

    Attributes:
        source: a file under the data folder, or the name of a built-in rate file.
        recorded: whether the source holds requests rather than rates.
        seeds: runs of each policy.
        train_share: part of recorded requests that policies are tuned on.
    """

    group: str
    source: str
    profile: str
    ttft_s: float
    tpot_s: float
    recorded: bool = False
    min_replicas: int = 1
    max_replicas: int = 16
    step_s: float = 15.0
    seeds: int = 1
    day: int | None = None
    mean_rps: float | None = None
    train_share: float = TRAIN_SHARE

    def arguments(self, data: str) -> tuple[str, ...]:
        """The options of `harmony replay` that repeat the load; `data`: the data folder."""
        source = f"{data}/{self.source}" if "/" in self.source else self.source
        optional: dict[str, float | None] = {
            "--min-replicas": self.min_replicas if self.min_replicas != 1 else None,
            "--max-replicas": self.max_replicas if self.max_replicas != 16 else None,
            "--step": self.step_s if self.step_s != 15.0 else None,
            "--day": self.day,
            "--mean-rate": self.mean_rps,
            "--train-share": self.train_share if self.train_share != TRAIN_SHARE else None,
        }
        words = ["--requests" if self.recorded else "--rate", source, "--profile", self.profile]
        words += ["--slo-ttft", f"{self.ttft_s:g}", "--slo-tpot", f"{self.tpot_s:g}", "--seeds", str(self.seeds)]
        for option, value in optional.items():
            words += [] if value is None else [option, f"{value:g}"]
        return tuple(words)


def _day_load(group: str, source: str, day: int | None, max_replicas: int = 16) -> NamedLoad:
    return NamedLoad(
        group, source, "llama2-70b-a100-tp8", 5.0, 0.15, max_replicas=max_replicas, day=day, mean_rps=3.0
    )  # fmt: skip


_WORLD_CUP: Final = "worldcup98/invocation_count.csv.gz"
_SURGES: Final = "replay-loads/surges_days0-4.csv.gz"
LOADS: Final[Mapping[str, NamedLoad]] = {
    "conversation": NamedLoad(
        DEVELOPMENT, "azure-llm-2023/AzureLLMInferenceTrace_conv.csv.gz", "opt13b-a100", 2.0, 0.12,
        recorded=True, step_s=10.0, seeds=3,
    ),
    "code": NamedLoad(
        DEVELOPMENT, "azure-llm-2023/AzureLLMInferenceTrace_code.csv.gz", "opt13b-a100", 8.0, 0.15,
        recorded=True, step_s=10.0, seeds=3,
    ),
    "bursts-long-prompts": NamedLoad(
        DEVELOPMENT, "replay-loads/bursts_long_prompts.csv.gz", "opt13b-a100", 8.0, 0.15, seeds=3
    ),
    "ramp": NamedLoad(DEVELOPMENT, "ramp", "llmd-guide", 3.0, 0.1, min_replicas=3, max_replicas=8, seeds=5),
    "worldcup-50": _day_load(DEVELOPMENT, _WORLD_CUP, 50),
    "servegen-mid": _day_load(DEVELOPMENT, "servegen/language_m-mid_trace.csv.gz", 4),
    "worldcup-55": _day_load(SHOWN, _WORLD_CUP, 55),
    "servegen-small": _day_load(SHOWN, "servegen/language_m-small_trace.csv.gz", 4),
    "servegen-image": _day_load(SHOWN, "servegen/multimodal_mm-image_trace.csv.gz", None),
    "surges-3": _day_load(SHOWN, _SURGES, 3, 24),
    "surges-4": _day_load(SHOWN, _SURGES, 4, 24),
    "mooncake": NamedLoad(
        SHOWN, "mooncake-fast25/synthetic_trace.jsonl.gz", "llama2-70b-h100-tp8", 30.0, 0.3,
        recorded=True, max_replicas=32, step_s=10.0, seeds=3, train_share=0.5,
    ),
}  # fmt: skip
"""Every load by name. `code` is not among the data that come with the project: its cells are left out without it."""


def named_loads(text: str) -> list[str]:
    """Loads of `development`, `shown`, `all` or of names between commas.

    Raises:
        HarmonyError: an unknown name.
    """
    names: list[str] = []
    for part in (part.strip() for part in text.split(",")):
        group = [name for name, load in LOADS.items() if part in (name, load.group, "all")]
        if not group:
            known = ", ".join((DEVELOPMENT, SHOWN, "all", *LOADS))
            raise HarmonyError(f"--cells: {part!r} is no load: choose from {known}.", 2)
        names += [name for name in group if name not in names]
    return names


def cell_of(load: NamedLoad, lead_s: float, data: Path, step_s: float | None = None) -> Cell:
    """The cell of one load and lead time.

    Raises:
        HarmonyError: the load cannot be read.
    """
    options = CellOptions(
        named_profile(load.profile), Objective(load.ttft_s, load.tpot_s), SHARE, lead_s, 0.0,
        load.min_replicas, load.max_replicas, step_s or load.step_s,
    )  # fmt: skip
    try:
        if load.recorded:
            return trace_cell(read_trace(data / load.source), options, load.train_share)
        source = str(data / load.source) if "/" in load.source else load.source
        return cell_of_rate(
            source, load.day, load.mean_rps, (token_law(PROMPT_TOKENS), token_law(OUTPUT_TOKENS)), options
        )
    except (TraceError, ProfileError) as error:
        raise HarmonyError(str(error), 2) from None


# Stored results. A name is a hash of the inputs and of the code without comments and docstrings.

_ENGINE_CODE: Final = (engine, cluster, ledger, simulation.simulate, simulation.score)
_ORACLE_CODE: Final = (*_ENGINE_CODE, oracle)
_RIVAL_CODE: Final = (
    engine, cluster, ledger, simulation, setting, prepare, run, catalogue, dynamo, predictive, reactive, work,
)  # fmt: skip


def code_digest(objects: Sequence[ModuleType | Callable[..., Any]]) -> str:
    """SHA-256 of the syntax trees of modules and top-level functions; comments and docstrings do not count."""
    digest = hashlib.sha256()
    for thing in objects:
        tree = ast.parse(inspect.getsource(thing))
        for node in ast.walk(tree):
            body = getattr(node, "body", None)
            if isinstance(body, list):
                kept = [s for s in body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
                node.body = kept or [ast.Pass()]  # type: ignore[attr-defined]
        digest.update(ast.dump(tree).encode())
    return digest.hexdigest()


# Taken at once: a file that is edited during a run must not name results of the code before.
_ORACLE_DIGEST: Final = code_digest(_ORACLE_CODE)
_RIVAL_DIGEST: Final = code_digest(_RIVAL_CODE)


def setting_digest(one: Setting) -> str:
    """SHA-256 of everything in a setting that a policy or a schedule can meet."""
    digest = hashlib.sha256()
    arrivals = one.load.arrivals
    for column in (arrivals.arrival_s, arrivals.prompt_tokens, arrivals.output_tokens):
        digest.update(column.tobytes())
    figures = (
        one.load.score, asdict(one.profile), asdict(one.objective), one.share, one.lead_s, one.lead_sigma_log,
        one.mixed_starts, one.min_replicas, one.max_replicas, one.initial_replicas, asdict(one.telemetry),
    )  # fmt: skip
    digest.update(repr(figures).encode())
    return digest.hexdigest()


def stored(folder: Path, key: Sequence[object], compute: Callable[[], Any]) -> Any:
    """The JSON value of this key, computed where it is not stored yet."""
    where = folder / f"{hashlib.sha256(repr(key).encode()).hexdigest()[:32]}.json"
    if where.exists():
        return json.loads(where.read_bytes())
    value = compute()
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = where.with_suffix(f".{os.getpid()}.part")
    unfinished.write_text(json.dumps(value), encoding="utf-8")
    unfinished.replace(where)
    return value


# Runs of one cell.


@dataclass(frozen=True, slots=True)
class CellTask:
    """What is run of one cell.

    Attributes:
        policies: by name.
        seeds: runs of each policy; None: as the load says.
        budget: schedules that the oracle tries; 0 = no oracle.
        known_hours: GPU-hours of the best schedule as measured before; they stand in where none is stored.
        equal: search rivals at HARMONY's attainment, in hindsight.
    """

    load: str
    lead_s: float
    policies: tuple[str, ...]
    data: Path
    cache: Path
    seeds: int | None = None
    step_s: float | None = None
    budget: int = 100
    known_hours: float | None = None
    equal: bool = False

    @property
    def name(self) -> str:
        return f"{self.load}, {self.lead_s:g} s"


@dataclass(frozen=True, slots=True)
class PolicyFigures:
    """One policy in one cell: means over its seeds, and the mean GPU-hours of the best schedule (None: not searched).

    Attributes:
        wall_s: seconds that the policy took here.
        equal: the policy at HARMONY's attainment, in hindsight; None: not searched, or not reached.
    """

    load: str
    lead_s: float
    policy: str
    attainment: float
    worst_window: float
    gpu_hours: float
    oracle_hours: float | None
    switches_per_hour: float
    settings: str
    wall_s: float
    equal: EqualAttainment | None = None

    @property
    def ratio(self) -> float | None:
        """GPU-hours by those of the best schedule."""
        return self.gpu_hours / self.oracle_hours if self.oracle_hours else None


def run_task(task: CellTask) -> list[PolicyFigures]:
    """Run what is not stored of a cell."""
    load = LOADS[task.load]
    cell = cell_of(load, task.lead_s, task.data, task.step_s)
    settings = [cell.scored(seed) for seed in range(task.seeds or load.seeds)]
    digests = [setting_digest(one) for one in settings]
    figures, hours = [], _oracle_hours(task, settings, digests)
    harmony: list[dict[str, Any]] = []
    for policy in task.policies:
        begin = time.monotonic()
        rows = _rows(task, policy, cell, settings, digests)
        harmony = rows if policy == "harmony" else harmony
        searched = task.equal and harmony and policy not in HARMONY_VARIANTS
        figures.append(
            PolicyFigures(
                task.load,
                task.lead_s,
                policy,
                fmean(row["attainment"] for row in rows),
                min(row["worst_window_attainment"] for row in rows),
                fmean(row["gpu_hours"] for row in rows),
                hours,
                fmean(row["switches_per_hour"] for row in rows),
                rows[0]["params"],
                time.monotonic() - begin,
                _equal(task, policy, cell, settings, harmony) if searched else None,
            )
        )
        sys.stderr.write(f"{task.name}: {policy} {_outcome(figures[-1])} ({figures[-1].wall_s:.0f} s)\n")
    return figures


def _oracle_hours(task: CellTask, settings: Sequence[Setting], digests: Sequence[str]) -> float | None:
    if task.budget <= 0:
        return None
    key = ("oracle", task.budget, *digests, _ORACLE_DIGEST)

    def search() -> list[Any]:
        return [asdict(bound) for bound in oracle_bounds(settings, task.budget)]

    if task.known_hours is not None:
        # The stored result is better where there is one: it was searched with the code of today.
        known = [asdict(Bound(SHARE, task.known_hours, 0.0, 0))]
        where = task.cache / f"{hashlib.sha256(repr(key).encode()).hexdigest()[:32]}.json"
        bounds = json.loads(where.read_bytes()) if where.exists() else known
    else:
        bounds = stored(task.cache, key, search)
    return fmean(bound["gpu_hours"] for bound in bounds) if bounds else None


def _rows(
    task: CellTask, policy: str, cell: Cell, settings: Sequence[Setting], digests: Sequence[str]
) -> list[dict[str, Any]]:
    if policy in HARMONY_VARIANTS:
        return _plain(run_policy(policy, cell.training, settings, cell.knowledge, tuned=False)[2])
    known = cell.knowledge
    key = ("rival", policy, setting_digest(cell.training), *digests, *_known(cell), _RIVAL_DIGEST)
    rows = stored(task.cache, key, lambda: _plain(run_policy(policy, cell.training, settings, known, tuned=True)[2]))
    return list(rows)


def _known(cell: Cell) -> tuple[object, ...]:
    """What an operator knows, as a part of a key."""
    known = cell.knowledge
    told = (known.benchmark_rps, known.concurrency, known.history.tobytes(), known.day_offset_s)
    return (*told, known.for_training().history.tobytes(), known.training_day_offset_s)


def _equal(
    task: CellTask, policy: str, cell: Cell, settings: Sequence[Setting], harmony: Sequence[Mapping[str, Any]]
) -> EqualAttainment | None:
    """Each trial is stored by itself, so that a change of HARMONY only costs the trials that nobody asked for yet."""
    digests = [setting_digest(one) for one in settings]

    def trial_of(choice: PolicyChoice) -> Trial:
        key = ("trial", choice.policy, choice.params, *digests, *_known(cell), _RIVAL_DIGEST)

        def run_one() -> list[Any]:
            trial = scored_trial(choice, settings, cell.knowledge)
            return [trial.attainment, trial.gpu_hours, trial.hours_by_seed]

        attainment, hours, by_seed = stored(task.cache, key, run_one)
        return Trial(choice, attainment, hours, tuple(by_seed))

    rows = [Row(**row) for row in harmony]
    wanted = fmean(row.attainment for row in rows)
    return equal_attainment(scored_trials(policy, settings, cell.knowledge, wanted, trial_of), rows)


def _plain(rows: Sequence[Row]) -> list[dict[str, Any]]:
    return [asdict(row) for row in rows]


def _outcome(its: PolicyFigures) -> str:
    ratio = "" if its.ratio is None else f" / {its.ratio:.2f}"
    return f"{100 * its.attainment:.2f}{'' if its.attainment >= SHARE else '!'}{ratio}"


# The command.


def table_rows(figures: Sequence[PolicyFigures]) -> list[tuple[str, ...]]:
    """A row of text per cell and policy."""
    return [
        (
            f"{its.load}, {its.lead_s:g} s",
            its.policy,
            f"{its.attainment:.2%}" + ("" if its.attainment >= SHARE else " !"),
            f"{its.worst_window:.2%}",
            f"{its.gpu_hours:.3f}",
            "" if its.ratio is None else f"{its.ratio:.2f}",
            f"{its.switches_per_hour:.1f}",
            its.settings,
        )
        for its in figures
    ]


def summary_rows(figures: Sequence[PolicyFigures]) -> list[tuple[str, ...]]:
    """A row of text per policy: cells that keep the objective, median and largest ratio, worst attainment."""
    rows: list[tuple[str, ...]] = []
    for policy in dict.fromkeys(its.policy for its in figures):
        mine = [its for its in figures if its.policy == policy]
        kept = sum(its.attainment >= SHARE for its in mine)
        ratios = [its.ratio for its in mine if its.ratio is not None]
        low_high = (f"{median(ratios):.2f}", f"{max(ratios):.2f}") if ratios else ("", "")
        rows.append((policy, f"{kept} of {len(mine)}", *low_high, f"{min(its.attainment for its in mine):.2%}"))
    return rows


def _print_equal(figures: Sequence[PolicyFigures]) -> None:
    rows = [(f"{its.load}, {its.lead_s:g} s", its.policy, *equal_texts(its.equal)) for its in figures]
    headings = "cell", "rival", "attainment", "GPU-hours", "HARMONY, times that", "settings"
    title = "\nIn hindsight, at HARMONY's attainment:"
    print_table(headings, rows, title=title, left=("rival", "settings"))


def known_hours(record: Path | None, load: str, lead_s: float, seeds: int | None) -> float | None:
    """GPU-hours of a cell's best schedule in a record of `tests.bench.replay_cells`; None where they do not apply."""
    if record is None or (seeds is not None and seeds != LOADS[load].seeds and not LOADS[load].recorded):
        return None
    cell = json.loads(record.read_bytes())["results"].get(f"{load}, {lead_s:g} s")
    if cell is None:
        return None
    one = next(iter(cell.values()))
    return float(one["gpu_hours"] / one["ratio"])


def _tasks(asked: argparse.Namespace) -> list[CellTask]:
    if asked.data is None:
        raise HarmonyError("Give the data's folder with --data, or set HARMONY_DATA_DIR.", 2)
    policies = named_policies(asked.policies)
    tasks = []
    for name in named_loads(asked.cells):
        source = LOADS[name].source
        if "/" in source and not (asked.data / source).exists():
            sys.stderr.write(f"{name}: left out, {asked.data / source} is not there\n")
            continue
        for lead_s in asked.leads:
            known = known_hours(asked.record, name, lead_s, asked.seeds)
            tasks.append(
                CellTask(
                    name, lead_s, policies, asked.data, asked.cache, asked.seeds, asked.step, asked.oracle, known,
                    asked.equal,
                )
            )  # fmt: skip
    return tasks


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cells and print the table; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m infra.lab.replay.cells")
    data = os.environ.get("HARMONY_DATA_DIR")
    parser.add_argument("--cells", default=DEVELOPMENT, help="development, shown, all, or loads between commas")
    parser.add_argument("--policies", default="harmony", help="between commas")
    parser.add_argument("--leads", default="30,100,300", help="seconds, between commas")
    parser.add_argument("--step", type=float, help="seconds per telemetry step of HARMONY; default: of the load")
    parser.add_argument("--seeds", type=int, help="runs of each policy; default: of the load")
    parser.add_argument("--oracle", type=int, default=100, help="schedules that the oracle tries; 0 = none")
    parser.add_argument("--record", type=Path, help="oracle hours of cells that are not stored: replay_cells.json")
    parser.add_argument("--data", type=Path, default=None if data is None else Path(data))
    parser.add_argument("--cache", type=Path, default=_CACHE)
    parser.add_argument("--equal", action="store_true", help="rivals at HARMONY's attainment too, in hindsight")
    parser.add_argument("--jobs", type=int, default=1, help="cells side by side")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args(arguments)
    try:
        asked.leads = [float(lead) for lead in asked.leads.split(",")]
        tasks = _tasks(asked)
        if asked.jobs > 1:
            with ProcessPoolExecutor(asked.jobs) as pool:
                figures = [its for cell in pool.map(run_task, tasks) for its in cell]
        else:
            figures = [its for task in tasks for its in run_task(task)]
    except HarmonyError as error:
        print(f"harmony: {error}", file=sys.stderr)
        return error.exit_code
    headings = "cell", "policy", "attainment", "worst window", "GPU-hours", "of oracle", "switches/h", "settings"
    print_table(headings, table_rows(figures), left=("policy", "settings"))
    sys.stdout.write("\n")
    print_table(("policy", "cells kept", "median of oracle", "most", "worst attainment"), summary_rows(figures))
    if asked.equal:
        _print_equal([its for its in figures if its.policy not in HARMONY_VARIANTS])
    write_json(asked.json, [asdict(its) | {"ratio": its.ratio} for its in figures])
    return 0


if __name__ == "__main__":
    sys.exit(main())
