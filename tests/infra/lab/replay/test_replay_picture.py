"""The picture of a surge, drawn from the logs of two runs of a replay."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from typer.testing import CliRunner

from infra.cli.app import app
from infra.lab.replay.picture import main, read_run

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two rules on a load that grows fourfold after ten minutes."""
    folder = tmp_path_factory.mktemp("picture")
    rate = folder / "rate.csv"
    rate.write_text(
        "start_s,rate_rps,prompt_tokens,output_tokens\n0,2,500,100\n600,8,500,100\n900,2,500,100\n1500,0,1,1\n"
    )
    arguments = ["replay", "--rate", str(rate), "--policies", "hpa,static-peak", "--seeds", "1", "--no-tune"]
    result = CliRunner().invoke(app, [*arguments, "--oracle", "0", "--log-dir", str(folder / "logs")])
    assert result.exit_code == 0, result.output
    return folder / "logs"


def test_the_bins_are_those_of_the_run(logs: Path) -> None:
    run = read_run(logs / "static-peak-0", 1200.0, 1500.0, 2.0, 0.2)
    assert len(run.load_rps) == 150
    assert run.load_rps[:60].mean() == pytest.approx(2.0, rel=0.2)
    assert run.load_rps[60:90].mean() == pytest.approx(8.0, rel=0.2)
    assert np.unique(run.ready).size == 1
    assert 0.0 <= run.missed.min() <= run.missed.max() <= 1.0
    assert read_run(logs / "static-peak-0", 1200.0, 1500.0, 1e-6, 0.2).missed[0] == 1.0


def test_the_picture_is_sound_and_has_a_line_of_each(logs: Path, tmp_path: Path) -> None:
    out = tmp_path / "surge.svg"
    names = [str(logs / f"{policy}-0") for policy in ("hpa", "static-peak")]
    assert main([*names, str(out), "--start", "1700", "--length", "900"]) == 0
    root = ET.parse(out).getroot()  # noqa: S314 - our own file
    lines = root.findall(f"{SVG}polyline")
    assert len(lines) == 5
    width, height = (float(n) for n in root.attrib["viewBox"].split()[2:])
    for line in lines:
        for pair in line.attrib["points"].split():
            x, y = (float(n) for n in pair.split(","))
            assert 0 <= x <= width
            assert 0 <= y <= height


def test_a_folder_without_logs_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path), str(tmp_path), str(tmp_path / "x.svg"), "--start", "0"]) == 2
    assert "make them with --log-dir" in capsys.readouterr().err
