"""The Python interface on tables: what it reads, and what it says of tables that it cannot use."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from infra import api
from infra.lab.forecast import ForecastJob, run_forecast

pd = pytest.importorskip("pandas", reason="pandas is not installed (extra `pandas`)")

ROWS = 120


def load(rows: int = ROWS, item: str = "web", start: str = "2026-01-01", **columns: Any) -> Any:
    """A table of one item: a wave, one row every 15 s."""
    times = pd.date_range(start, periods=rows, freq="15s")
    wave = 20 + 8 * np.sin(np.arange(rows) / 10)
    return pd.DataFrame({"item_id": item, "timestamp": times, "target": wave} | columns)


def forecast(df: Any, *arguments: Any, **options: Any) -> Any:
    return api.forecast(df, *arguments, **({"model": "seasonal_naive"} | options))


def refusal(df: Any, **options: Any) -> str:
    """The sentence with which a table is refused."""
    with pytest.raises(api.InputError) as caught:
        forecast(df, **options)
    assert isinstance(caught.value, ValueError)
    assert "--" not in str(caught.value)
    return str(caught.value)


def test_it_says_what_the_command_says_of_the_same_rows(tmp_path: Path) -> None:
    df, out = load(), tmp_path / "out.csv"
    df.to_csv(tmp_path / "load.csv", index=False)
    job = ForecastJob(
        tmp_path / "load.csv", 4, "0.1,0.5", None, None, None, windows=0, model="seasonal_naive", lower=None,
        out=out, as_json=False, plot=None,
    )  # fmt: skip
    run_forecast(job)
    told, written = forecast(df, 4, [0.5, 0.1]), pd.read_csv(out)
    assert list(told.columns) == ["item_id", "timestamp", "target_name", "mean", "0.1", "0.5"]
    np.testing.assert_allclose(told[["mean", "0.1", "0.5"]], written[["mean", "0.1", "0.5"]], rtol=1e-5)
    assert told.timestamp.tolist() == pd.to_datetime(written.timestamp).dt.tz_localize(None).tolist()


def test_items_and_targets_each_have_their_rows() -> None:
    both = pd.concat([load(gpu=0.5), load(90, "chat", gpu=0.7)])
    told = forecast(both, 3, target=["target", "gpu"])
    assert told.groupby(["item_id", "target_name"], sort=False).size().to_dict() == {
        (item, name): 3 for item in ("web", "chat") for name in ("target", "gpu")
    }
    assert told[told.target_name == "gpu"]["0.5"].round(3).tolist() == [0.5] * 3 + [0.7] * 3


def test_columns_go_by_other_names() -> None:
    df = load().rename(columns={"item_id": "service", "timestamp": "when", "target": "rps"})
    told = forecast(df, 2, id_column="service", timestamp_column="when", target="rps")
    assert list(told.columns[:3]) == ["service", "when", "target_name"]
    without = forecast(df.drop(columns="service"), 2, timestamp_column="when", target="rps")
    assert list(without.columns[:2]) == ["when", "target_name"]
    np.testing.assert_array_equal(told["0.5"], without["0.5"])


@pytest.mark.parametrize(
    "written",
    [
        lambda times: times.tz_localize("UTC").tz_convert("America/New_York"),
        lambda times: times.strftime("%Y-%m-%dT%H:%M:%SZ"),
        lambda times: times.astype("datetime64[ms]"),
        lambda times: times.astype("datetime64[s]").astype("int64"),
        lambda times: pd.array(times.to_period("s")),
    ],
    ids=["zone", "text", "milliseconds", "seconds since 1970", "periods"],
)
def test_a_time_is_the_same_instant_however_it_is_written(written: Any) -> None:
    df = load()
    df["timestamp"] = written(pd.DatetimeIndex(df["timestamp"]))
    told, plain = forecast(df, 2), forecast(load(), 2)
    zone = getattr(df["timestamp"].dtype, "tz", None)
    assert str(told.timestamp.dt.tz) == str(zone)
    instants = told.timestamp if zone is None else told.timestamp.dt.tz_convert("UTC").dt.tz_localize(None)
    assert instants.tolist() == plain.timestamp.tolist()


def test_a_clock_that_goes_back_is_no_trouble_with_a_zone() -> None:
    times = pd.date_range("2026-10-25 00:30", periods=ROWS, freq="1min", tz="UTC").tz_convert("Europe/Berlin")
    told = forecast(load(timestamp=times), 2)
    assert str(told.timestamp[0]) == "2026-10-25 03:30:00+01:00"


def test_holes_are_missing_and_not_zero() -> None:
    holed = load(target=pd.array([20.0] * ROWS, dtype="Float64"))
    holed.loc[30:60, "target"] = pd.NA
    absent = load(target=20.0).drop(index=range(30, 61))
    for df in (holed, absent):
        assert forecast(df, 2)["0.5"].round(2).tolist() == [20.0, 20.0]
    assert forecast(load(empty=np.nan), 2, target=["target", "empty"])["mean"].isna().sum() == 2


def test_a_coarser_step_averages() -> None:
    for step in ("1min", 60, timedelta(minutes=1)):
        told = forecast(load(), 2, step="1m" if step == "1min" else step)
        assert told.timestamp.diff().iloc[1] == timedelta(minutes=1)


@pytest.mark.parametrize(
    ("df", "options", "words"),
    [
        ({"a": 1}, {}, "df must be a pandas DataFrame, got builtins.dict: make one"),
        (lambda: load().iloc[:0], {}, "df: has no rows"),
        (lambda: load().rename(columns={"target": "rps"}), {}, "no column 'target'; it has item_id, timestamp, rps"),
        (lambda: load().rename(columns={"timestamp": "ds"}), {}, "name yours with timestamp_column"),
        (lambda: load().set_index("timestamp"), {}, "df.reset_index()"),
        (lambda: load().set_index(["item_id", "timestamp"]), {}, "df.reset_index()"),
        (lambda: pd.concat([load(), load()[["target"]]], axis=1), {}, "column 'target' is there twice"),
        (load, {"target": []}, "target: [] must name at least one column"),
        (load, {"target": "item_id"}, "must name different columns"),
        (lambda: load().iloc[[0, 1, 1, *range(2, ROWS)]], {}, "df, row 2: item 'web' has the timestamp"),
        (lambda: load().iloc[::-1], {}, "df, row 1: item 'web' goes back in time"),
        (lambda: load(timestamp=[None, *load().timestamp[1:]]), {}, "df, row 0, column timestamp: None is no time"),
        (lambda: load(target=["many", *load().target[1:]]), {}, "df, row 0, column target: 'many' is not a finite"),
        (lambda: load(target=[[1.0]] * ROWS), {}, "column target: a list is not a finite number"),
        (lambda: load(target=np.inf), {}, "column target: inf is not a finite number"),
        (lambda: load(item_id=[None] + ["web"] * (ROWS - 1)), {}, "df, row 0, column item_id"),
        (lambda: load(4), {}, "has 4 observed rows; a forecast of 24 steps needs"),
        (lambda: load(1), {}, "give one with step"),
        (load, {"prediction_length": 0}, "prediction_length: 0 must be a whole number of 1 to 1000"),
        (load, {"prediction_length": 2.5}, "prediction_length: 2.5"),
        (load, {"quantile_levels": [0.5, 1.5]}, "quantile_levels: '0.5,1.5' must list numbers between 0 and 1"),
        (load, {"quantile_levels": []}, "quantile_levels"),
        (load, {"step": "soon"}, "step: "),
        (load, {"step": -1.0}, "step: "),
        (load, {"model": "oracle"}, "model: 'oracle' is none of served"),
        (load, {"lower": 1000.0}, "lower 1000: no value of item 'web', target lies there"),
    ],
)  # fmt: skip
def test_a_table_that_cannot_be_used_is_told_why(df: Any, options: dict[str, Any], words: str) -> None:
    assert words in refusal(df() if callable(df) else df, **options)


def test_another_kind_of_frame_is_told_how_it_becomes_one() -> None:
    class Other:
        columns = ("target",)

        def to_pandas(self) -> None: ...

    assert "call its to_pandas()" in refusal(Other())


def test_an_evaluation_has_a_row_for_each_model() -> None:
    noise = np.random.default_rng(0).normal(0, 1, 400)
    df = pd.concat([load(400, target=20 + noise), load(400, "chat", target=5 + noise)])
    scores = api.evaluate(df, 4, ["snaive", "last", "ewma"])
    assert scores.model.tolist() == ["snaive", "last", "ewma"]
    assert scores.relative_wql[0] == 1.0
    assert scores.relative_wql[2] < 1.0
    assert (scores.relative_wql_low <= scores.relative_wql_high).all()
    assert scores.num_origins.nunique() == 1


class _Short:
    """A forecaster that sees less far than it is asked to."""

    max_horizon = 2

    def forecast(self, *_: Any) -> None: ...


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"models": ["snaive", "delphi"]}, "models: rolling knows no delphi"),
        ({"models": ["network:/nowhere"]}, "models: network:/nowhere cannot run here"),
        ({"models": [object()]}, "models: object has no method forecast"),
        ({"models": [_Short()]}, "models: _Short forecasts at most 2 steps; prediction_length is 4"),
        ({"prediction_length": 64}, "no item has room for a forecast of 64 steps in its last fifth"),
        ({"context_length": 0}, "context_length: 0"),
        ({"max_origins": 0}, "max_origins: 0"),
    ],
)
def test_an_evaluation_that_cannot_be_made_says_why(options: dict[str, Any], words: str) -> None:
    with pytest.raises(api.InputError, match=words):
        api.evaluate(load(), **({"prediction_length": 4} | options))
