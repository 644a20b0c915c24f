"""Performance profiles of the simulated engine: what an iteration costs and what a replica holds."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, fields
from pathlib import Path

_MOST = 10**12


class ProfileError(ValueError):
    """A profile file that cannot be used; the message names the file, the field and the remedy."""


@dataclass(frozen=True, slots=True)
class EngineProfile:
    """Costs and limits of one replica.

    Attributes:
        base_s: fixed cost of an iteration.
        prefill_token_s: per prompt token computed.
        prefill_token_sq_s: per prompt token and cached token it attends to.
        sequence_s: per decoding request.
        kv_token_s: per token in cache.
        kv_capacity_tokens: tokens the cache holds.
        max_batch: requests running at once.
        max_prefill_tokens: prompt tokens per iteration.
        admission_watermark: share of the cache kept free when admitting.
        gpus_per_replica: devices one replica holds.

    Raises:
        ValueError: a field out of range.
    """

    name: str
    base_s: float
    prefill_token_s: float
    sequence_s: float
    kv_token_s: float
    kv_capacity_tokens: int
    max_batch: int
    max_prefill_tokens: int
    gpus_per_replica: int = 1
    prefill_token_sq_s: float = 0.0
    admission_watermark: float = 0.01

    def __post_init__(self) -> None:
        for name in (
            "base_s",
            "prefill_token_s",
            "prefill_token_sq_s",
            "sequence_s",
            "kv_token_s",
            "admission_watermark",
        ):
            value = getattr(self, name)
            number = not isinstance(value, bool) and isinstance(value, (int, float))
            if not (number and 0 <= value < math.inf):
                raise ValueError(f"{name} must be a finite number >= 0, got {value!r}")
            if value > _MOST:
                raise ValueError(f"{name} must be at most {_MOST:g}")
        for name in ("kv_capacity_tokens", "max_batch", "max_prefill_tokens", "gpus_per_replica"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be an integer >= 1, got {value!r}")
            if value > _MOST:
                raise ValueError(f"{name} must be at most {_MOST}")
        if self.base_s <= 0:
            raise ValueError("base_s must be above 0: an iteration takes time")
        if self.admission_watermark >= 1:
            raise ValueError(f"admission_watermark must be below 1, got {self.admission_watermark}")

    def steady_concurrency(self, prompt_tokens: float, output_tokens: float, tpot_s: float) -> float:
        """Requests decoding at once at which the mean time per token reaches `tpot_s`, or a hard limit binds.

        Steady state of Little's law: an iteration of B sequences lasts `d(B)` plus the prefill of the B / output_tokens
        requests that it must start to keep B constant.
        """
        tokens = prompt_tokens + output_tokens / 2
        prefill_s = (self.prefill_token_s + self.prefill_token_sq_s * prompt_tokens / 2) * prompt_tokens
        per_sequence_s = self.sequence_s + self.kv_token_s * tokens + prefill_s / max(1.0, output_tokens)
        by_time = (tpot_s - self.base_s) / per_sequence_s if per_sequence_s > 0 else math.inf
        by_memory = self.kv_capacity_tokens * (1 - self.admission_watermark) / tokens
        return max(1.0, min(by_time, by_memory, float(self.max_batch)))

    def steady_rate(self, prompt_tokens: float, output_tokens: float, tpot_s: float) -> float:
        """Requests per second one replica carries at `steady_concurrency`."""
        batch = self.steady_concurrency(prompt_tokens, output_tokens, tpot_s)
        tokens = prompt_tokens + output_tokens / 2
        prefill_s = (self.prefill_token_s + self.prefill_token_sq_s * prompt_tokens / 2) * prompt_tokens
        decode_s = self.base_s + (self.sequence_s + self.kv_token_s * tokens) * batch
        return batch / (output_tokens * decode_s + batch * prefill_s)


# Fits to published measurements, in which the lab's cells are replayed. OPT-13B on one A100: the profile of LLMServe's
# DistServe simulator (Apache-2.0), relative error 0.5 % (median). Llama-2 70B on eight A100 or H100: the table of
# Splitwise's simulator (MIT), 5 %. `llmd-guide`: prefill speed of llm-d's SLO-aware guide; the rest is calibrated so
# that a replica carries 1.45 requests/s of 4,000 prompt and 1,000 output tokens within 3 s and 100 ms.
_FITTED: tuple[EngineProfile, ...] = (
    EngineProfile(
        "opt13b-a100", 0.023424256559210526, 0.0001323103224258346, 6.977143858228692e-05, 5.713270472412799e-07,
        66_144, 256, 512, 1, prefill_token_sq_s=1.2663024027069155e-08,
    ),
    EngineProfile(
        "llama2-70b-a100-tp8", 0.04259051931229798, 0.00013771804043296172, 8.47275874428644e-05, 5.962495813976382e-07,
        1_336_669, 256, 512, 8, prefill_token_sq_s=3.6188371754069636e-09,
    ),
    EngineProfile(
        "llama2-70b-h100-tp8", 0.029446964515857724, 6.18274364797036e-05, 0.00017472160556734906,
        2.4388311512455054e-07, 1_336_669, 256, 1024, 8, prefill_token_sq_s=3.917932294358693e-09,
    ),
    EngineProfile(
        "llmd-guide", 0.012, 6.278252134605726e-05, 9.975395415534233e-05, 4.987697707767116e-08,
        600_000, 256, 2048, 2, prefill_token_sq_s=0.0,
    ),
)  # fmt: skip

BUILT_IN_PROFILES: dict[str, EngineProfile] = {
    p.name: p
    for p in (
        EngineProfile("dense-70b", 0.034, 2.3e-4, 3.2e-4, 6.5e-7, 150_000, 128, 1024, 2, prefill_token_sq_s=2e-9),
        EngineProfile("dense-13b", 0.022, 1.3e-4, 9e-5, 5.5e-7, 72_000, 128, 512, 1, prefill_token_sq_s=1e-8),
        EngineProfile("moe-30b", 0.013, 5.5e-5, 1.3e-4, 1.6e-7, 320_000, 256, 1024, 1),
        *_FITTED,
    )
}

_REQUIRED = tuple(f.name for f in fields(EngineProfile) if f.name not in ("prefill_token_sq_s", "admission_watermark"))
_FIELDS = frozenset(f.name for f in fields(EngineProfile))
_REMARKS = frozenset({"fit", "source", "comment", "licence"})


def load_profile(path: str | Path) -> EngineProfile:
    """Read a profile from a JSON object with the fields of `Profile`.

    Raises:
        ProfileError: unreadable, not JSON, a field missing, unknown or out of range.
    """
    where = Path(path)
    try:
        body = json.loads(where.read_text(encoding="utf-8"))
    except OSError as error:
        raise ProfileError(
            f"{where}: cannot be read ({error.strerror or error}); give the path of a profile JSON file"
        ) from None
    except UnicodeDecodeError:
        raise ProfileError(f"{where}: is not UTF-8 text; give a profile JSON file") from None
    except json.JSONDecodeError as error:
        raise ProfileError(f"{where}, line {error.lineno}: is not JSON ({error.msg}); correct the file") from None
    except (ValueError, RecursionError):  # a number of thousands of digits, or brackets nested as often
        raise ProfileError(f"{where}: is not a profile, but longer and deeper than any; correct the file") from None
    if not isinstance(body, dict):
        raise ProfileError(f"{where}: holds a {type(body).__name__}, not an object; write one profile per file")
    missing = [name for name in _REQUIRED if name not in body]
    if missing:
        raise ProfileError(f"{where}: lacks {', '.join(missing)}; add the field{'s' if len(missing) > 1 else ''}")
    unknown = sorted(set(body) - _FIELDS - _REMARKS)
    if unknown:
        raise ProfileError(f"{where}: unknown field {unknown[0]!r}; known fields are {', '.join(sorted(_FIELDS))}")
    values = {name: body[name] for name in body if name in _FIELDS}
    if not isinstance(values["name"], str) or not values["name"]:
        raise ProfileError(f"{where}: name must be a text, got {values['name']!r}")
    try:
        return EngineProfile(**values)
    except ValueError as error:
        raise ProfileError(f"{where}: {error}; correct the field") from None


def named_profile(name_or_path: str) -> EngineProfile:
    """A built-in profile by name, else the file at that path.

    Raises:
        ProfileError: neither a built-in name nor a usable file.
    """
    if name_or_path in BUILT_IN_PROFILES:
        return BUILT_IN_PROFILES[name_or_path]
    if not Path(name_or_path).exists():
        raise ProfileError(
            f"{name_or_path}: no such profile; give a profile JSON file, or one of {', '.join(BUILT_IN_PROFILES)}"
        )
    return load_profile(name_or_path)
