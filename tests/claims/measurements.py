"""The commands that claims are measured by. Each appends `--json FILE` and writes one record."""

from __future__ import annotations

from tests.claims.claim import Measurement

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
