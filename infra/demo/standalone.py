"""The demo's fleet alone, for workers that run elsewhere: `python -m infra.demo.standalone`.

The workers must run with the same settings (config/demo.yaml), with `--no-ticks --accelerated`.
"""

from __future__ import annotations

import sys
from time import time

from agents.policy import Policy
from infra.console.errors import HarmonyError
from infra.demo.fleet import FleetRunner, Snapshot
from infra.demo.live import LiveView
from infra.demo.session import on_stop
from infra.demo.workloads import DEMO_STREAM, FleetSpec, demo_fleet, demo_policy, settings_of
from infra.kafka.tail import TopicTail
from infra.settings.load import Settings, load_settings
from streams.topics import Topics

_SPEED = 20.0
_TOPICS = Topics("harmony.", 4, 64 << 20)


def demo_settings() -> dict[str, object]:
    """What config/demo.yaml holds: the settings of the demo's fleet and of its workers."""
    return settings_of(demo_policy(demo_fleet()), DEMO_STREAM, _TOPICS)


def run_demo_fleet(settings: Settings, speed: float, duration_s: float | None = None) -> dict[str, object]:
    """Publish the fleet's telemetry and obey the commands until stopped; returns the summary.

    Raises:
        HarmonyError: no broker, settings of another fleet (exit code 2), or topics that hold an earlier demo.
    """
    fleet = demo_fleet()
    _check_declared(settings.policy, fleet)
    if not settings.brokers:
        raise HarmonyError("No Kafka broker is named: set HARMONY_BROKERS.")
    security = settings.kafka_client_options()
    with TopicTail(settings.brokers, settings.topics.telemetry_requests, security=security) as tail:
        if any(end > 0 for _, end in tail.bounds().values()):
            raise HarmonyError(
                "The telemetry topics hold an earlier demo, and simulated time cannot begin again on them. Remove "
                "Kafka's volume (`docker compose down --volumes`), or choose another topic_prefix."
            )
    with LiveView() as view:

        def show(snapshot: Snapshot) -> None:
            view.update(snapshot.live)

        runner = FleetRunner(
            settings.brokers,
            settings.topics,
            settings.stream,
            settings.policy,
            fleet,
            speed=speed,
            now_ms=int(time() * 1000),
            duration_s=duration_s,
            on_update=show,
            security=security,
        )
        on_stop(runner.stop)
        return runner.run()


def _check_declared(policy: Policy, fleet: FleetSpec) -> None:
    declared = {spec.id for spec in policy.workloads}
    missing = sorted(spec.id for spec in fleet.specs() if spec.id not in declared)
    if missing:
        raise HarmonyError(f"The settings do not declare the demo's {', '.join(missing)}: use config/demo.yaml.", 2)


def main() -> None:
    """Entry point; settings come from HARMONY_CONFIG and HARMONY_BROKERS."""
    try:
        run_demo_fleet(load_settings(), _SPEED)
    except HarmonyError as error:
        sys.stderr.write(f"harmony demo fleet: {error.message}\n")
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
