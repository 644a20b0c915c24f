"""The Python interface, under its short name: `import harmony` (docs/python.md).

    forecast, evaluate   quantile forecasts of a DataFrame, and scores of forecasters on it
    plan, explain        what HARMONY would do with a load, and why
    replay               scaling policies on a recorded load
    Publisher            telemetry to Kafka
    subscribe            decisions, commands and forecasts from Kafka, as typed records

These names and their parameters are stable; everything else in the packages may change. Heavy packages are imported
by the functions that need them. A mistake in an argument or a table raises `InputError`, anything else that a person
can act on `HarmonyError`.
"""

from agents.records import Command, Decision, ForecastRecord
from infra.api.errors import InputError
from infra.api.forecasts import evaluate, forecast
from infra.api.kafka_clients import Publisher, subscribe
from infra.api.plans import explain, plan
from infra.api.replays import PolicyRun, ReplayResult, replay
from infra.console.errors import HarmonyError

__all__ = [
    "Command",
    "Decision",
    "ForecastRecord",
    "HarmonyError",
    "InputError",
    "PolicyRun",
    "Publisher",
    "ReplayResult",
    "evaluate",
    "explain",
    "forecast",
    "plan",
    "replay",
    "subscribe",
]
