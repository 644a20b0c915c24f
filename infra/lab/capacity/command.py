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
    from infra.simulator.arrivals import Tokens
    from infra.simulator.profiles import EngineProfile
    from model.capacity.roofline import ModelSize


def capacity(
    load_test: Annotated[
        list[Path] | None,
        typer.Option("--load-test", help="Result of vLLM's, SGLang's or AIPerf's load test (several)."),
    ] = None,
    replicas: Annotated[int, typer.Option(min=1, max=10_000, help="Replicas that were tested together.")] = 1,
    model: Annotated[Path | None, typer.Option(help="Or estimate it: the model's config.json.")] = None,
    gpu: Annotated[str | None, typer.Option(help="... and its GPU, such as h100 or a100-80gb.")] = None,
    profile: Annotated[str | None, typer.Option(help="Or simulate an engine: a profile's name or file.")] = None,
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
    split: Annotated[
        bool, typer.Option("--split", help="Compare prefill and decode on GPUs of their own with both together.")
    ] = False,
    handover_us: Annotated[
        float,
        typer.Option(callback=finite, min=0, help="Of --split: microseconds to hand over a prompt token's cache."),
    ] = 5.0,
    rate: Annotated[
        float | None, typer.Option(callback=finite, min=0.001, help="Of --split: requests/s, for whole replicas.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """What does one replica carry? From load tests, or estimated by model and GPU: a capacity to declare."""
    from agents.policy import Slo
    from infra.lab.replay.job import check_slo, token_law

    check_slo(slo_ttft, slo_tpot, objective)
    slo = Slo(slo_ttft, slo_tpot, objective)
    _check_basis(load_test, model, profile, profile_out, rate, split=split)
    tokens = token_law(prompt_tokens), token_law(output_tokens)
    basis: dict[str, Any]
    if profile is not None:
        engine = _profile(profile)
        if split:
            _print_modes(engine, tokens, slo, handover_us, rate, as_json=as_json)
            return
        estimate, basis = _simulated(engine, tokens, slo)
    elif load_test:
        estimate, basis = _tested(load_test, slo, replicas)
    else:
        if model is None or gpu is None:
            raise HarmonyError("An estimate needs both: --model config.json and --gpu.", 2)
        engine, size = _engine_of(model, gpu, gpus, params, (max_batch, max_prefill_tokens))
        if split:
            _print_modes(engine, tokens, slo, handover_us, rate, as_json=as_json)
            return
        estimate, basis = _simulated(engine, tokens, slo)
        say("An estimate: it may be off by the factor below, two times of three. A load test is better.")
        basis = {"from": "roofline", "model": asdict(size), **basis}
        if profile_out is not None:
            profile_out.write_text(json.dumps(asdict(engine), indent=1) + "\n", encoding="utf-8")
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


def _check_basis(
    load_test: list[Path] | None, model: Path | None, profile: str | None, profile_out: Path | None,
    rate: float | None, *, split: bool,
) -> None:  # fmt: skip
    if sum((bool(load_test), model is not None, profile is not None)) != 1:
        raise HarmonyError(
            "Say what it rests on: --load-test FILE, or --model config.json with --gpu, or --profile NAME.", 2
        )
    if profile_out is not None and model is None:
        raise HarmonyError("--profile-out writes an estimated engine: it goes with --model.", 2)
    if load_test and split:
        raise HarmonyError("--split simulates an engine: it goes with --model or --profile.", 2)
    if rate is not None and not split:
        raise HarmonyError("--rate is the load of the pools that --split compares: give both.", 2)


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


def _engine_of(
    model: Path, gpu: str, gpus: int, params: float | None, limits: tuple[int, int]
) -> tuple[EngineProfile, ModelSize]:
    from infra.lab.capacity.load_tests import profile_of
    from infra.lab.capacity.model_files import accelerator_of, given_size, model_size
    from model.capacity.roofline import iteration_costs

    accelerator = accelerator_of(gpu)
    size = model_size(model, None if params is None else given_size(params))
    try:
        costs = iteration_costs(size, accelerator, gpus)
    except ValueError as error:
        raise HarmonyError(
            f"{model} on {gpus} x {gpu}: {error}; give more GPUs, or ones with more memory.", 2
        ) from None
    say(
        f"{size.params / 1e9:.3g} billion parameters on {gpus} x {gpu}: an iteration takes {1000 * costs.base_s:.3g} "
        f"ms, a prompt token {1e6 * costs.prefill_token_s:.3g} us, a token in the cache {1e6 * costs.kv_token_s:.3g} "
        f"us; the cache holds {costs.kv_capacity_tokens:,} tokens."
    )
    return profile_of(f"{model.parent.name or model.stem}-{gpu}-x{gpus}".lower(), costs, gpus, *limits), size


def _profile(name: str) -> EngineProfile:
    from infra.simulator.profiles import ProfileError, named_profile

    try:
        return named_profile(name)
    except ProfileError as error:
        raise HarmonyError(f"--profile: {error}", 2) from None


def _simulated(
    engine: EngineProfile, tokens: tuple[Tokens, Tokens], slo: Slo
) -> tuple[MeasuredCapacity, dict[str, Any]]:
    from infra.lab.capacity.load_tests import of_profile

    return of_profile(engine, *tokens, slo), {"from": "simulation", "profile": asdict(engine)}


def _print_modes(
    engine: EngineProfile,
    tokens: tuple[Tokens, Tokens],
    slo: Slo,
    handover_us: float,
    rate: float | None,
    *,
    as_json: bool,
) -> None:
    """Goodput of both modes, and the better one."""
    from infra.lab.capacity.load_tests import modes_of_profile

    modes = modes_of_profile(engine, *tokens, slo, handover_us * 1e-6)
    together, split = modes.together_per_gpu_rps, modes.split_per_gpu_rps
    counts = None if rate is None else modes.gpus(rate)
    if as_json:
        rates = {"together_per_gpu_rps": together, "split_per_gpu_rps": split}
        chosen = {"mode": modes.better(rate), "rate_rps": rate, "gpus": counts}
        print_json({**asdict(modes), **rates, **chosen, "profile": asdict(engine)})
        return
    typer.echo(f"together: {together:.3g} requests/s per GPU, {modes.together_chunk} prompt tokens per iteration")
    pools = ""
    if modes.prefill_rps is not None and modes.decode_rps is not None:
        pools = f", {modes.decode_rps / modes.prefill_rps:.3g} replicas that prefill for each that decodes"
    typer.echo(f"split: {split:.3g} requests/s per GPU{pools}")
    if counts is not None:
        for mode, gpus in counts.items():
            typer.echo(f"GPUs for {rate:g} requests/s, {mode}: {gpus}")
    typer.echo(f"serve {modes.better(rate)}")
