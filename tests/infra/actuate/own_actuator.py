"""An actuator of somebody's own, in sixty lines that share nothing with ours: what `harmony actuate check --exec` runs.

Given `naive` it does what looks right at first: it obeys whatever has not run out.
"""

import json
import sys
from pathlib import Path

NAIVE = "naive" in sys.argv[1:]
targets: dict[str, int] = {}
seen: dict[str, dict] = {}
memory = Path()


def keep() -> None:
    unfinished = memory / "seen.new"
    unfinished.write_text(json.dumps(seen))
    unfinished.replace(memory / "seen.json")


def obey(c: dict, now_ms: int) -> None:
    w, place = c["workload"], [c["epoch"], c["sequence"]]
    last = seen.get(w)
    if not 0 <= c["replicas"] <= 1000 or c["issued_ts_ms"] >= c["valid_until_ts_ms"]:
        return
    if seen and not NAIVE and c["epoch"] > max(known["place"][0] for known in seen.values()) + 1:
        return
    if last and not NAIVE:
        same_id = last["id"] == c["command_id"]
        if place < last["place"] or (same_id and last["replicas"] != c["replicas"]):
            return
        if place == last["place"] and not same_id:
            return
    ours = {last["set"], last["accepted"]} if last else set()
    new = {"place": place, "id": c["command_id"], "replicas": c["replicas"], "until": 0, "set": None, "accepted": None}
    if last:
        new |= {k: last[k] for k in ("until", "set", "accepted")}
    seen[w] = new
    fits = targets[w] in {c["expected_current"], c["replicas"]} | ours or c["reason"] == "pin" or NAIVE
    if now_ms < c["valid_until_ts_ms"] and fits:
        new |= {"until": c["valid_until_ts_ms"], "set": c["replicas"], "accepted": c["replicas"]}
        keep()
        targets[w] = c["replicas"]
    keep()


def answer(w: str, now_ms: int) -> int | None:
    last = seen.get(w)
    return last["set"] if last and (now_ms < last["until"] or NAIVE) else None


for line in sys.stdin:
    q = json.loads(line)
    said: dict = {}
    if q["do"] in ("start", "restart"):
        memory, targets = Path(q["memory"]), q["replicas"]
        if (memory / "seen.json").exists():
            seen = json.loads((memory / "seen.json").read_text())
        said = {"abilities": ["changes", "answers"]}
    elif q["do"] == "deliver":
        obey(q["command"], q["now_ms"])
        said = {"replicas": targets[q["command"]["workload"]]}
    elif q["do"] == "change":
        targets[q["workload"]] = q["replicas"]
    elif q["do"] == "answer":
        said = {"replicas": answer(q["workload"], q["now_ms"])}
    print(json.dumps(said), flush=True)
