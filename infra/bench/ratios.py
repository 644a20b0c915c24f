"""The ratios that ingest must not fall below: within one run, so that they mean the same on every machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Limit(NamedTuple):
    """Least rate and least thrift (a rival's CPU per sample over ours) of HARMONY beside that rival in the same run."""

    rival: str
    rate: float
    thrift: float


# Some way below what was measured: rates on a machine whose cores are shared differ by a fifth from run to run.
LIMITS: Mapping[str, Limit] = {
    "single": Limit("aiokafka loop", rate=1.1, thrift=1.0),
    "packed": Limit("aiokafka loop", rate=1.2, thrift=1.2),
    "binary": Limit("fetch only", rate=0.13, thrift=0.13),
}


def fallen(results: Mapping[str, Any]) -> list[str]:
    """One sentence for each ratio of a bench's results that lies below its limit; forms without the rival are left out.

    Args:
        results: by form, as `harmony bench ingest` stores them.
    """
    said = []
    for form, result in results.items():
        limit, subjects = LIMITS[form], result["subjects"]
        if limit.rival not in subjects:
            continue
        mine, other = subjects["harmony"], subjects[limit.rival]
        for what, least, ratio in (
            ("rate", limit.rate, _median(mine, "samples_per_s") / _median(other, "samples_per_s")),
            ("thrift", limit.thrift, _median(other, "cpu_us_per_sample") / _median(mine, "cpu_us_per_sample")),
        ):
            if ratio < least:
                said.append(f"{form}: {what} is {ratio:.2f} x the {limit.rival}, the limit is {least:.2f}.")
    return said


def _median(subject: Mapping[str, Any], figure: str) -> float:
    return float(subject[figure]["median"])
