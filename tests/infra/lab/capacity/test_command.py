"""`harmony capacity`: what it prints can be declared, the engine it writes can be replayed, mistakes get a sentence."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from infra.cli.app import app
from infra.console.errors import HarmonyError
from infra.settings.load import load_settings
from infra.simulator.profiles import load_profile
from tests.infra.lab.capacity.configs import LLAMA_70B
from tests.infra.lab.capacity.test_load_tests import SUMMARY


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["capacity", *map(str, arguments)])


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "llama" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(LLAMA_70B), encoding="utf-8")
    return path


def test_an_estimate_can_be_declared_and_its_engine_replayed(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "engine.json"
    result = run("--model", model, "--gpu", "h100", "--gpus", 4, "--profile-out", out)
    assert result.exit_code == 0, result.output
    found = yaml.safe_load(result.stdout)
    assert found["capacity_off_by"] == 2.2
    settings = tmp_path / "harmony.yaml"
    settings.write_text(yaml.safe_dump({"workloads": [{"id": "w", **found}]}), encoding="utf-8")
    (declared,) = load_settings(settings).policy.workloads
    assert (declared.capacity_rps, declared.capacity_off_by) == (found["capacity_rps"], 2.2)
    profile = load_profile(out)
    assert (profile.name, profile.gpus_per_replica) == ("llama-h100-x4", 4)
    more = yaml.safe_load(run("--model", model, "--gpu", "h100", "--gpus", 8).stdout)
    assert more["capacity_rps"] > found["capacity_rps"]
    longer = yaml.safe_load(run("--model", model, "--gpu", "h100", "--gpus", 4, "--output-tokens", "800:0.6").stdout)
    assert longer["capacity_rps"] < found["capacity_rps"]


def test_load_tests_are_put_together(tmp_path: Path) -> None:
    paths = []
    for rate, ttft_ms in ((4.0, 800.0), (8.0, 900.0), (10.0, 9_000.0)):
        paths.append(tmp_path / f"{rate}.json")
        paths[-1].write_text(json.dumps(SUMMARY | {"request_rate": rate, "p99_ttft_ms": ttft_ms}), encoding="utf-8")
    given = [argument for path in paths for argument in ("--load-test", path)]
    result = run(*given, "--slo-ttft", 1, "--slo-tpot", 0.1, "--replicas", 2, "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["capacity_rps"] == pytest.approx(80.0**0.5 / 2, rel=0.01)
    assert told["capacity_off_by"] == 1.28
    assert [test["kept"] for test in told["load_tests"]] == [True, True, False]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "either"),
        (("--gpu", "h100"), "--load-test FILE, or --model"),
        (("--model", "MODEL"), "An estimate needs both"),
        (("--model", "MODEL", "--gpu", "h100", "--load-test", "x.json"), "--load-test FILE, or --model"),
        (("--model", "MODEL", "--gpu", "h100"), "leave no room for requests in the 72 GB"),
        (("--model", "MODEL", "--gpu", "h100", "--gpus", 4, "--slo-tpot", 0.001), "Even an idle replica does not keep"),
        (("--model", "MODEL", "--gpu", "h100", "--prompt-tokens", "many"), "Token counts must be a mean"),
        (("--load-test", "x.json"), "x.json: cannot be read"),
        (("--load-test", "x.json", "--objective", 1.5), "--objective must be between 0 and 1"),
        (("--load-test", "x.json", "--profile-out", "OUT"), "it goes with --model"),
        (("--profile", "no-such"), "--profile: no-such: no such profile"),
        (("--profile", "opt13b-a100", "--model", "MODEL"), "or --profile NAME"),
        (("--profile", "opt13b-a100", "--rate", 5), "--rate is the load of the pools"),
        (("--load-test", "x.json", "--split"), "--split simulates an engine"),
        (("--profile", "opt13b-a100", "--split", "--slo-tpot", 0.001), "Neither mode keeps"),
    ],
)
def test_mistakes_get_one_sentence(arguments: tuple[object, ...], says: str, model: Path, tmp_path: Path) -> None:
    places = {"MODEL": model, "OUT": tmp_path / "out.json"}
    result = run(*(places.get(str(argument), argument) for argument in arguments))
    assert isinstance(result.exception, HarmonyError)
    assert result.exception.exit_code == 2
    if says != "either":
        assert re.search(re.escape(says), result.exception.message)


def test_pools_of_their_own_are_compared_with_both_together() -> None:
    given = ("--profile", "opt13b-a100", "--split", "--objective", 0.9, "--slo-ttft", 0.4, "--slo-tpot", 0.04)
    tokens = ("--prompt-tokens", "512:0.5", "--output-tokens", "64:0.5")
    result = run(*given, *tokens, "--rate", 40, "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["mode"] == min(told["gpus"], key=told["gpus"].get)
    assert told["split_per_gpu_rps"] == pytest.approx(1 / (1 / told["prefill_rps"] + 1 / told["decode_rps"]))
    assert told["split_per_gpu_rps"] > 1.3 * told["together_per_gpu_rps"]
