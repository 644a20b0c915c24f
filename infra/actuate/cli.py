"""`harmony actuate dry-run|webhook|kubernetes|keda|plugin`, and the operator's words in force on this host."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infra.actuate import overrides as cli_overrides
from infra.actuate.conformance import command as cli_conformance
from infra.actuate.overrides import OverridesOption
from infra.console.errors import HarmonyError
from infra.console.options import BrokersOption, ConfigOption, finite, say, spread

# What every actuator is told on the command line: options declared once, on the fields of a dataclass.


if TYPE_CHECKING:
    from infra.actuate.assembly import Chosen


@dataclass(frozen=True, slots=True)
class ActuatorOptions:
    """Where the commands are, which words and caps hold, how events are printed."""

    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line on stdout.")] = False
    brokers: BrokersOption = None
    config: ConfigOption = None
    overrides: OverridesOption = None
    max_added: Annotated[int | None, typer.Option(min=0, help="Replicas one workload may gain within a minute.")] = None
    max_removed: Annotated[int | None, typer.Option(min=0, help="Replicas one workload may lose within a minute.")] = (
        None
    )
    max_removed_fleet: Annotated[
        int | None, typer.Option(min=0, help="Replicas all may lose together within a minute.")
    ] = None

    def chosen(self, name: str, web: tuple[str | None, int] | None = None) -> Chosen:
        """Settings, brokers and limits of the actuator of this name; `web` is address (None = the settings') and port.

        Raises:
            HarmonyError: a mistake in the settings, or no brokers anywhere (exit code 2).
        """
        from agents.actuation.guard import RateCaps
        from infra.actuate.assembly import Chosen
        from infra.kafka.discovery import find_fleet
        from infra.observability.logs import configure_logging

        settings, where = find_fleet(self.config, self.brokers)
        configure_logging(settings.worker.log_level, output=settings.worker.log_format)
        caps = RateCaps(self.max_added, self.max_removed, self.max_removed_fleet)
        host, port = web or (None, None)
        return Chosen(settings, where, name, self.overrides, caps, web_host=host or settings.web_host, web_port=port)


@dataclass(frozen=True, slots=True)
class ActingOptions(ActuatorOptions):
    """The same, and which memory is its own, and where it is watched."""

    name: Annotated[str | None, typer.Option("--name", help="Of this actuator's memory; two on one host need two.")] = (
        None
    )
    web_host: Annotated[
        str | None, typer.Option(help="Address of metrics, probes and JSON; default: the settings'.")
    ] = None
    web_port: Annotated[int, typer.Option(min=0, max=65_535, help="Their port; 0 = any free one.")] = 9465

    def acting(self, name: str) -> Chosen:
        """As `chosen`, under the name that was given, else this one, and watched."""
        return self.chosen(self.name or name, (self.web_host, self.web_port))


if TYPE_CHECKING:
    from infra.actuate.assembly import Chosen
    from infra.actuate.plugin import PluginActuator
    from infra.actuate.webhook import Webhook

app = typer.Typer(no_args_is_help=True, help="Act on commands: show them, post them, set replicas, answer KEDA.")
cli_overrides.register(app)
cli_conformance.register(app)


@app.command("dry-run")
@spread
def dry_run(
    shared: ActuatorOptions,
    once: Annotated[bool, typer.Option("--once", help="End after what is in the topic now.")] = False,
    simulated: Annotated[
        bool, typer.Option("--simulated", help="Time is the commands' own, as in `harmony run` at speed.")
    ] = False,
) -> None:
    """Print what would be done with each command, and why some would be refused."""
    from infra.actuate.assembly import run_dry

    _run(run_dry(shared.chosen("dry-run"), once=once, simulated=simulated, as_json=shared.as_json))


@app.command()
@spread
def webhook(
    shared: ActingOptions,
    url: Annotated[str, typer.Argument(help="Where commands are posted; https, or http on this machine.")],
    secret_file: Annotated[
        Path | None, typer.Option(help="File with the signing secret; default: HARMONY_WEBHOOK_SECRET.", dir_okay=False)
    ] = None,
    timeout_s: Annotated[
        float, typer.Option("--timeout", callback=finite, min=0.1, help="Seconds for one attempt.")
    ] = 10.0,
    insecure: Annotated[bool, typer.Option("--insecure", help="Allow http to another machine.")] = False,
) -> None:
    """Post each change to a URL, signed, until it is answered."""
    from infra.actuate.runner import wall_ms
    from infra.actuate.webhook import Webhook, secret_bytes

    key = secret_bytes(_secret(secret_file))
    chosen = shared.acting("webhook")
    fleet = chosen.settings.fleet
    _run(_act(shared, chosen, lambda: Webhook(url, key, fleet, wall_ms, timeout_s=timeout_s, insecure=insecure)))


@app.command()
@spread
def kubernetes(
    shared: ActingOptions,
    acting: Annotated[bool, typer.Option("--act", help="Set replicas; without, the server only checks.")] = False,
    server: Annotated[str | None, typer.Option(help="API server; default: the cluster this pod runs in.")] = None,
    token_file: Annotated[Path | None, typer.Option(help="Bearer token for --server.", dir_okay=False)] = None,
    ca_file: Annotated[Path | None, typer.Option(help="CA of --server.", dir_okay=False)] = None,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Also set replicas that another HARMONY set last.")
    ] = False,
    facts: Annotated[
        bool, typer.Option("--facts/--no-facts", help="Publish replica counts and lead times as telemetry.")
    ] = True,
    facts_every_s: Annotated[
        float, typer.Option("--facts-every", callback=finite, min=0.5, help="Seconds between them.")
    ] = 5.0,
    victims_from: Annotated[
        str | None, typer.Option(help="Prometheus that knows the pods' load: idle ones are given up first.")
    ] = None,
    victims_query: Annotated[
        str | None, typer.Option(help="PromQL of that load, by pod; {namespace} and {name} are the target's.")
    ] = None,
) -> None:
    """Set replicas of Deployments, StatefulSets, LeaderWorkerSets and whatever else has /scale."""
    from infra.actuate.assembly import run_kubernetes
    from infra.actuate.kubernetes import DEFAULT_QUERY, PrometheusLoads
    from infra.actuate.kubernetes_api import find_access

    chosen = shared.acting("kubernetes")
    access = find_access(server, token_file, ca_file)
    loads = PrometheusLoads(victims_from, victims_query or DEFAULT_QUERY) if victims_from else None
    if not acting:
        say("harmony: dry run, nothing is changed; --act acts.")
    _run(
        run_kubernetes(
            chosen,
            access,
            acting=acting,
            facts_every_s=facts_every_s if facts else None,
            loads=loads,
            as_json=shared.as_json,
            take_over=take_over,
        )
    )


@app.command()
@spread
def keda(
    shared: ActingOptions,
    grpc: Annotated[bool, typer.Option("--grpc/--no-grpc", help="The external scaler, or only HTTP.")] = True,
    grpc_host: Annotated[str, typer.Option(help="Address of the external scaler.")] = "127.0.0.1",
    grpc_port: Annotated[int, typer.Option(min=0, max=65_535, help="Its port; 0 = any free one.")] = 9466,
    tls_cert: Annotated[Path | None, typer.Option(help="PEM certificate of the scaler.", dir_okay=False)] = None,
    tls_key: Annotated[Path | None, typer.Option(help="PEM key of the scaler.", dir_okay=False)] = None,
    tls_client_ca: Annotated[
        Path | None, typer.Option(help="PEM CA that KEDA's certificate must be of.", dir_okay=False)
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="gRPC in the clear beyond loopback.")] = False,
) -> None:
    """Answer KEDA (gRPC and JSON) and Prometheus with the replicas in force."""
    from infra.actuate.assembly import act
    from infra.actuate.keda import KedaScaler, Lookup
    from infra.actuate.pull import Answers

    chosen = shared.acting("keda")

    async def run() -> None:
        async with AsyncExitStack() as stack:

            async def serve(lookup: Lookup) -> None:
                if not grpc:
                    return
                scaler = KedaScaler(
                    lookup,
                    host=grpc_host,
                    port=grpc_port,
                    tls_cert=tls_cert,
                    tls_key=tls_key,
                    tls_client_ca=tls_client_ca,
                    insecure=insecure,
                )
                await scaler.start()
                stack.push_async_callback(scaler.stop)
                say(f"harmony: external scaler on {grpc_host}:{scaler.port}")

            await act(chosen, Answers("keda"), as_json=shared.as_json, serve=serve)

    _run(run())


@app.command()
@spread
def plugin(
    shared: ActingOptions,
    actuator: Annotated[str, typer.Argument(help="Name of an installed actuator; `harmony plugins` lists them.")],
    timeout_s: Annotated[
        float, typer.Option("--timeout", callback=finite, min=0.1, help="Seconds for one call.")
    ] = 10.0,
) -> None:
    """Hand each change to an actuator of your own, installed as a plug-in."""
    from infra.actuate.plugin import PluginActuator
    from infra.settings.limits import PluginLimits
    from infra.settings.plugins import find

    entry = find("actuator", actuator)
    chosen = shared.acting(actuator)
    section = chosen.settings.advanced.plugins
    limits = PluginLimits(timeout_s, section.failures, section.pause_calls)
    _run(_act(shared, chosen, lambda: PluginActuator(entry, section.options.get("actuator", {}), limits)))


async def _act(args: ActingOptions, chosen: Chosen, make: Callable[[], Webhook | PluginActuator]) -> None:
    from infra.actuate.assembly import act

    actuator = make()
    try:
        await act(chosen, actuator, as_json=args.as_json)
    finally:
        await actuator.close()


def _secret(file: Path | None) -> str:
    if file is None:
        secret = os.environ.get("HARMONY_WEBHOOK_SECRET", "")
        if not secret:
            raise HarmonyError("The webhook needs a signing secret: --secret-file or HARMONY_WEBHOOK_SECRET.", 2)
        return secret
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise HarmonyError(f"Cannot read {file}: {error}.", 2) from error


def _run(work: Coroutine[Any, Any, None]) -> None:
    import asyncio

    asyncio.run(work)
