"""What `harmony.yaml` may say: every key with its bounds, default and one line of explanation.

A workload's stand in `settings_workload`. At most a dozen keys meet a new user; the rest stand under `advanced`.
Defaults come from the records that use them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, SecretStr, StringConstraints, field_validator, model_validator

from agents.policy import GuardLimits, Policy
from infra.console.text import printable
from infra.settings.limits import PluginKind, PluginLimits, WatchdogLimits
from model.network.spec import SHIPPED_NAME
from streams.config import StreamConfig
from streams.topics import Topics

# What every section of the settings file is made of.


# Seconds beyond it have no 64-bit count of milliseconds; nothing that is meant comes near.
MOST = 1e15


class Section(BaseModel):
    """A mapping of the file: frozen, and unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, allow_inf_nan=False)

    @field_validator("*")
    @classmethod
    def _usable(cls, value: Any) -> Any:
        if isinstance(value, int | float) and abs(value) > MOST:
            # An integer may have more digits than a float can tell.
            raise ValueError(f"must lie within -{MOST:g} and {MOST:g}, got {printable(str(value), 40)}")
        if isinstance(value, str):
            check_text(value)
        return value


def key(default: Any, explanation: str, **bounds: Any) -> Any:
    """A key with its default, its one line of explanation and its bounds."""
    return Field(default, description=explanation, **bounds)


def check_text(text: str) -> None:
    """Raises ValueError for a NUL, which ends a path or a name for the system below."""
    if "\0" in text:
        raise ValueError("must not hold a NUL character")


def check_unique(names: Iterable[str], what: str = "") -> None:
    """Raises ValueError for the first name that comes again; `what` says of what it is the name."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"{what}{name!r} is declared twice")
        seen.add(name)


Role = Annotated[str, StringConstraints(pattern=r"^(all|(ingest|forecast|decide)(,(ingest|forecast|decide))*)$")]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]

_STREAM = StreamConfig()
_POLICY = Policy()
_GUARDS = GuardLimits()
_TOPICS = Topics()
_WATCHDOGS = WatchdogLimits()
_PLUGINS = PluginLimits()


class StreamSection(Section):
    grace_s: float = key(_STREAM.grace_ms / 1000, "A slot closes this long after its end.", ge=0)
    skew_s: float = key(_STREAM.skew_ms / 1000, "Samples further ahead of the broker's clock are refused.", ge=0)
    context_steps: int = key(_STREAM.context_steps, "Steps of history that a forecast sees.", gt=0, le=100_000)
    max_workloads: int = key(_STREAM.max_workloads, "Per partition; only new ones are refused beyond it.", gt=0)
    max_record_bytes: int = key(_STREAM.max_record_bytes, "Larger telemetry records are dead-lettered.", gt=0)
    source_silence_steps: int = key(_STREAM.source_silence_steps, "Steps without data until a source is silent.", gt=0)

    source_cap: float | None = key(
        _STREAM.source_cap, "No source counts for more than so many times the mean of the others; 2 is safe.", ge=1
    )

    @model_validator(mode="after")
    def _skew_within_grace(self) -> StreamSection:
        if self.skew_s > self.grace_s:
            raise ValueError(
                f"skew_s ({self.skew_s:g}) is above grace_s ({self.grace_s:g}): one fast clock would make others late"
            )
        return self


class PlanningSection(Section):
    epoch: int = key(_POLICY.epoch, "Raised only by `harmony state reset`.", ge=1)
    commit_s: float = key(_POLICY.commit_s, "How long a decision must stay right.", gt=0)
    bearable_ratio: float = key(
        _POLICY.bearable_ratio, "Share of the misses allowed that a plan may expect.", gt=0, le=10
    )
    doubt_ratio: float = key(
        _POLICY.doubt_ratio, "Lower part of what a replica may carry that a trial leaves out; 0 = none.", ge=0, le=0.9
    )
    recurring_surges: bool = key(
        _POLICY.recurring_surges, "Expect surges again that have kept a period, such as an hour or a day."
    )
    jumps: bool = key(_POLICY.jumps, "Expect jumps that no forecast had in it, as often as they came.")
    plan_every: int = key(_POLICY.plan_every, "Forecast and plan every so many steps.", ge=1)
    max_horizon: int = key(_POLICY.max_horizon, "Longest forecast in steps; what lies beyond is not seen.", ge=1)
    paths_screen: int = key(_POLICY.paths_screen, "Sample paths of a forecast.", ge=16)
    paths_verify: int = key(_POLICY.paths_verify, "Futures that decide where 1024 leave doubt.", ge=16)
    seed: int = key(_POLICY.seed, "Of every random draw.", ge=0)


class GuardsSection(Section):
    warm_up_steps: int = key(_GUARDS.warm_up_steps, "Observed steps before the first command.", ge=0)
    max_age_s: float = key(_GUARDS.max_age_s, "Hold when a source is older.", gt=0)
    min_coverage_ratio: float = key(_GUARDS.min_coverage_ratio, "Hold when fewer sources report.", ge=0, le=1)
    cliff_ratio: float = key(_GUARDS.cliff_ratio, "No scale-down on a fall by more within a step.", gt=0, le=1)
    stabilization_up_s: float = key(_GUARDS.stabilization_up_s, "Lowest proposal of this window goes up.", ge=0)
    stabilization_down_s: float = key(_GUARDS.stabilization_down_s, "Highest proposal of it goes down.", ge=0)
    up_ratio: float = key(_GUARDS.up_ratio, "Most growth per period, as a share.", ge=0)
    up_replicas: int = key(_GUARDS.up_replicas, "... or as replicas, whichever is more.", ge=0)
    up_period_s: float = key(_GUARDS.up_period_s, "That period.", gt=0)
    down_ratio: float = key(_GUARDS.down_ratio, "Most shrinkage per period, as a share.", ge=0, le=1)
    down_replicas: int = key(_GUARDS.down_replicas, "... or as replicas, whichever is more.", ge=0)
    down_period_s: float = key(_GUARDS.down_period_s, "That period.", gt=0)
    release_ratio: float = key(_GUARDS.release_ratio, "Give up at this share of the risk allowed.", gt=0, le=1)
    tolerance_ratio: float = key(_GUARDS.tolerance_ratio, "Ignore relative changes up to this.", ge=0, lt=1)
    fleet_reclaim: bool = key(
        _GUARDS.fleet_reclaim, "At max_gpus, lower priorities give up replicas for higher ones, down to their min."
    )
    fleet_max_power_w: float | None = key(None, "Drawn by all replicas together; empty = no limit.", ge=0)
    fleet_min_replicas: int = key(_GUARDS.fleet_min_replicas, "Of all workloads together, never fewer.", ge=0)
    fleet_removals_per_minute: int | None = key(None, "Of all workloads together, never more; empty = no limit.", ge=0)
    lease_steps: int = key(_GUARDS.lease_steps, "A command is valid this many steps.", ge=1)


class KafkaSection(Section):
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = key(
        "PLAINTEXT", "How to talk to the brokers."
    )
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = key(None, "With SASL_*.")
    sasl_username: str | None = key(None, "With SASL_*.")
    sasl_password: SecretStr | None = key(None, "Better in a file, or in the environment.")
    sasl_password_file: str | None = key(None, "File that holds the password, such as a mounted secret.")
    ssl_cafile: str | None = key(None, "Certificate authority of the brokers; empty = the system's.")
    ssl_certfile: str | None = key(None, "Our certificate, for mutual TLS.")
    ssl_keyfile: str | None = key(None, "Its key.")
    replication_factor: int | None = key(None, "Of topics we create; empty = the cluster's default.", ge=1)
    pages_retention_bytes: int = key(_TOPICS.pages_retention_bytes, "Per partition of `pages`.", ge=1 << 20)

    @model_validator(mode="after")
    def _complete(self) -> KafkaSection:
        if self.security_protocol.startswith("SASL"):
            given = self.sasl_password or self.sasl_password_file
            if not (self.sasl_mechanism and self.sasl_username and given):
                raise ValueError(
                    f"{self.security_protocol} needs sasl_mechanism, sasl_username and sasl_password (or its _file)"
                )
        if self.sasl_password and self.sasl_password_file:
            raise ValueError("sasl_password and sasl_password_file exclude each other")
        if self.ssl_keyfile and not self.ssl_certfile:
            raise ValueError("ssl_keyfile needs ssl_certfile")
        return self


class ModelSection(Section):
    weights: str = key(
        SHIPPED_NAME, "shipped, none (baselines only), or a folder made by `harmony train`.", min_length=1
    )
    allowed_digests: tuple[Sha256, ...] = key((), "SHA-256 of weights in a folder that may be loaded; empty = any.")
    max_network_workloads: int | None = key(
        None,
        "Per partition; where there are more, the baselines forecast them all. Empty = one for every 60 ms of a step.",
        ge=0,
    )


class WorkerSection(Section):
    instance_id: str | None = key(None, "Stable name of this worker; empty = host name and a number.")
    batch_deadline_ms: int = key(10, "Longest wait for a fuller inference batch; on a CPU only while one runs.", ge=0)
    batch_max_workloads: int = key(1024, "Largest inference batch.", ge=1)
    inference_threads: int = key(1, "CPU threads of the model; part of what makes numbers repeatable.", ge=1)
    device: Literal["auto", "cpu", "cuda"] = key("auto", "Where the network alone runs; auto = a GPU if there is one.")
    session_timeout_s: float = key(15.0, "Kafka takes a silent worker's partitions after this time.", ge=1, le=300)
    kill_file: str | None = key(None, "While this file exists, nothing is published to `commands`.")
    metrics_max_workloads: int = key(100, "Workloads with metrics of their own; the rest are counted.", ge=0)
    metrics_token: SecretStr | None = key(None, "Needed to read metrics on an address that is not loopback.")
    web_certfile: str | None = key(None, "Certificate of page and metrics; empty = plain HTTP.")
    web_keyfile: str | None = key(None, "Its key; empty = in the same file.")
    web_client_cafile: str | None = key(None, "Authority of clients' certificates, which then do for a token.")
    log_level: Literal["debug", "info", "warning", "error"] = key("info", "Least severe line that is logged.")
    log_format: Literal["auto", "json", "console"] = key("auto", "auto = console on a terminal, else JSON.")

    @model_validator(mode="after")
    def _tls_has_a_certificate(self) -> WorkerSection:
        if (self.web_keyfile or self.web_client_cafile) and not self.web_certfile:
            raise ValueError("web_keyfile and web_client_cafile need web_certfile")
        return self


class WatchdogsSection(Section):
    loop_s: float = key(_WATCHDOGS.loop_s, "End when the event loop has not turned for this time.", ge=1)
    stall_s: float = key(_WATCHDOGS.stall_s, "... when work or Kafka has stood still for this time.", ge=1)
    join_s: float = key(_WATCHDOGS.join_s, "... when Kafka has assigned no partitions for this time.", ge=1)
    restore_s: float = key(_WATCHDOGS.restore_s, "... when restoring the state takes longer.", ge=1)
    forecast_s: float = key(_WATCHDOGS.forecast_s, "... when fitting and planning one batch takes longer.", ge=1)


class PluginsSection(Section):
    forecaster: str = key("", "Name of an installed forecaster, asked before the built-in ones; empty = none.")
    policy: str = key("", "Name of an installed policy, asked after the planner; empty = none.")
    time_limit_s: float = key(_PLUGINS.time_limit_s, "One call may take this long.", gt=0, le=60)
    failures: int = key(_PLUGINS.failures, "After so many failed calls in a row ...", ge=1)
    pause_calls: int = key(_PLUGINS.pause_calls, "... the next ones are answered without it.", ge=1)
    options: dict[PluginKind, dict[str, Any]] = key({}, "Per kind (forecaster, ...), what its factory is given.")

    @field_validator("options")
    @classmethod
    def _can_be_told(cls, options: dict[PluginKind, dict[str, Any]]) -> dict[PluginKind, dict[str, Any]]:
        """Fingerprints hold them as JSON, and YAML knows more than JSON does."""
        for kind, given in options.items():
            try:
                orjson.dumps(given, option=orjson.OPT_SORT_KEYS)
            except TypeError as error:
                raise ValueError(f"those of {kind} hold what JSON cannot ({error})") from None
        return options


class AdvancedSection(Section):
    stream: StreamSection = Field(default_factory=StreamSection, description="Event time and slots.")
    model: ModelSection = Field(default_factory=ModelSection, description="The forecaster.")
    planning: PlanningSection = Field(default_factory=PlanningSection, description="Forecast and plan.")
    guards: GuardsSection = Field(default_factory=GuardsSection, description="Limits of every command.")
    kafka: KafkaSection = Field(default_factory=KafkaSection, description="Connection and topics.")
    worker: WorkerSection = Field(default_factory=WorkerSection, description="This process.")
    plugins: PluginsSection = Field(default_factory=PluginsSection, description="Code of your own, in the workers.")
    watchdogs: WatchdogsSection = Field(default_factory=WatchdogsSection, description="When a worker ends itself.")
