"""`harmony capacity`: what one replica carries, before any telemetry has told."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infra.console.errors import HarmonyError
from infra.console.options import JsonOption, finite, print_json, say, writable
from infra.lab.defaults import OUTPUT_TOKENS, PROMPT_TOKENS

if TYPE_CHECKING:  # numpy stands behind them, which `--help` does without
    from agents.policy import Slo
    from infra.lab.capacity.load_tests import MeasuredCapacity


def capacity(
    load_test: Annotated[
        list[Path] | None,
        typer.Option("--load-test", help="Result of vLLM's, SGLang's or AIPerf's load test (several)."),
    ] = None,
    replicas: Annotated[int, typer.Option(min=1, max=10_000, help="Replicas that were tested together.")] = 1,
    model: Annotated[Path | None, typer.Option(help="Or estimate it: the model's config.json.")] = None,
    gpu: Annotated[str | None, typer.Option(help="... and its GPU, such as h100 or a100-80gb.")] = None,
    gpus: Annotated[int, typer.Option(min=1, max=1024, help="GPUs that share one replica.")] = 1,
    params: Annotated[
        float | None, typer.Option(callback=finite, help="Parameters, where config.json does not tell them right.")
    ] = None,
    prompt_tokens: Annotated[str, typer.Option(help="Of a request: mean or mean:sigma.")] = PROMPT_TOKENS,
    output_tokens: Annotated[str, typer.Option(help="Likewise.")] = OUTPUT_TOKENS,
    max_batch: Annotated[int, typer.Option(min=1, max=100_000, help="Requests that the engine runs at once.")] = 256,
    max_prefill_tokens: Annotated[
        int, typer.Option(min=1, max=10_000_000, help="Prompt tokens that it reads per iteration.")
    ] = 2048,
    slo_ttft: Annotated[float, typer.Option(callback=finite, help="Seconds to the first token.")] = 2.0,
    slo_tpot: Annotated[float, typer.Option(callback=finite, help="Seconds per further token.")] = 0.2,
    objective: Annotated[float, typer.Option(callback=finite, help="Wanted share of good requests.")] = 0.99,
    profile_out: Annotated[
        Path | None, typer.Option(callback=writable, help="Write the estimated engine here, for replay and backtest.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """What does one replica carry? From load tests, or estimated by model and GPU: a capacity to declare."""
    from agents.policy import Slo
    from infra.lab.replay.job import check_slo

    check_slo(slo_ttft, slo_tpot, objective)
    slo = Slo(slo_ttft, slo_tpot, objective)
    if bool(load_test) == (model is not None):
        raise HarmonyError("Say what it rests on: --load-test FILE, or --model config.json with --gpu.", 2)
    basis: dict[str, Any]
    if load_test:
        if profile_out is not None:
            raise HarmonyError("--profile-out writes an estimated engine: it goes with --model.", 2)
        estimate, basis = _tested(load_test, slo, replicas)
    else:
        if model is None or gpu is None:
            raise HarmonyError("An estimate needs both: --model config.json and --gpu.", 2)
        estimate, basis = _estimated(
            model, gpu, gpus, params, (prompt_tokens, output_tokens), (max_batch, max_prefill_tokens), slo
        )
        if profile_out is not None:
            profile_out.write_text(json.dumps(basis["profile"], indent=1) + "\n", encoding="utf-8")
            say(f"The engine is {profile_out}: `harmony replay --profile`, `harmony backtest --engine`.")
    for remark in estimate.remarks:
        say(remark)
    body = {"capacity_rps": float(f"{estimate.capacity_rps:.3g}"), "capacity_off_by": round(estimate.off_by, 2)}
    if as_json:
        promised = {"ttft_s": slo_ttft, "tpot_s": slo_tpot, "objective": objective}
        print_json({**body, "slo": promised, "remarks": list(estimate.remarks), **basis})
    else:
        say("For the workload in harmony.yaml:")
        for name, value in body.items():
            typer.echo(f"{name}: {value:g}")


def _tested(paths: list[Path], slo: Slo, replicas: int) -> tuple[MeasuredCapacity, dict[str, Any]]:
    from infra.lab.capacity.load_tests import capacity_of_load_tests, read_load_tests

    tests = sorted((test for path in paths for test in read_load_tests(path, slo)), key=lambda test: test.rate_rps)
    for test in tests:
        missed = "" if test.missed is None else f", {test.missed} of {test.requests} missed"
        say(f"{test.rate_rps:9.3g} requests/s: {'kept' if test.kept else 'too many missed'}{missed} ({test.source})")
    return capacity_of_load_tests(tests, slo, replicas), {
        "from": "load_tests",
        "load_tests": [asdict(test) for test in tests],
    }


def _estimated(
    model: Path,
    gpu: str,
    gpus: int,
    params: float | None,
    tokens: tuple[str, str],
    limits: tuple[int, int],
    slo: Slo,
) -> tuple[MeasuredCapacity, dict[str, Any]]:
    from infra.lab.capacity.load_tests import of_profile, profile_of
    from infra.lab.capacity.model_files import accelerator_of, given_size, model_size
    from infra.lab.replay.job import token_law
    from model.capacity.roofline import iteration_costs

    accelerator = accelerator_of(gpu)
    size = model_size(model, None if params is None else given_size(params))
    prompt, output = map(token_law, tokens)
    try:
        costs = iteration_costs(size, accelerator, gpus)
    except ValueError as error:
        raise HarmonyError(
            f"{model} on {gpus} x {gpu}: {error}; give more GPUs, or ones with more memory.", 2
        ) from None
    profile = profile_of(f"{model.parent.name or model.stem}-{gpu}-x{gpus}".lower(), costs, gpus, *limits)
    estimate = of_profile(profile, prompt, output, slo)
    say(
        f"{size.params / 1e9:.3g} billion parameters on {gpus} x {gpu}: an iteration takes {1000 * costs.base_s:.3g} "
        f"ms, a prompt token {1e6 * costs.prefill_token_s:.3g} us, a token in the cache {1e6 * costs.kv_token_s:.3g} "
        f"us; the cache holds {costs.kv_capacity_tokens:,} tokens."
    )
    say("An estimate: it may be off by the factor below, two times of three. A load test is better.")
    return estimate, {"from": "roofline", "model": asdict(size), "profile": asdict(profile)}
