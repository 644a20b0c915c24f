"""Settings of every command: `harmony.yaml`, environment and flags, validated once, as the records the core takes."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from agents.policy import GuardLimits, Policy, WorkloadSpec
from infra.console.errors import HarmonyError
from infra.console.host import state_home
from infra.settings.brokers import format_brokers, parse_brokers
from infra.settings.errors import CONFIG_VARIABLE, ENV_PREFIX, check_environment, explain
from infra.settings.limits import WatchdogLimits
from infra.settings.plugins import find, identity
from infra.settings.schema import (
    AdvancedSection,
    GuardsSection,
    KafkaSection,
    PlanningSection,
    Role,
    StreamSection,
    WorkerSection,
    check_text,
    check_unique,
    declared,
    top_content,
)
from infra.settings.workload import WorkloadSection
from infra.settings.yaml import no_file, read_settings_file
from streams.config import StreamConfig
from streams.runtime.app import without_garbage_collection
from streams.topics import Topics

DEFAULT_FILE = "harmony.yaml"


class Settings(BaseSettings):
    """Everything that can be set. Precedence: flags, environment (`HARMONY_`, `__` between levels), file, defaults."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        env_ignore_empty=True,
        allow_inf_nan=False,
    )

    brokers: str = Field("", description="Kafka, host:port, several with commas; empty = the one of `harmony run`.")
    fleet: str = declared(Policy, "fleet")
    topic_prefix: str = declared(Topics, "prefix")
    partitions: int = declared(Topics, "partitions")
    step_s: float = declared(StreamConfig, "step_ms")
    epsilon: float = declared(Policy, "epsilon")
    max_gpus: int | None = declared(GuardLimits, "fleet_max_gpus")
    role: Role = Field("all", description="What a worker does: all, or some of ingest,forecast,decide.")
    web_host: str = Field("127.0.0.1", description="Address of page, metrics and health; 0.0.0.0 = every interface.")
    web_port: int = Field(9464, description="Its port; 0 = any free one.", ge=0, le=65_535)
    state_dir: Path = Field(default_factory=state_home, description="For the embedded Kafka and the run state.")
    workloads: tuple[WorkloadSection, ...] = Field((), description="Workloads to scale.")
    advanced: AdvancedSection = Field(default_factory=AdvancedSection, description="All else, with good defaults.")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        # `load_settings` merges file, environment and flags itself, to be able to say where a mistake stands.
        return (init_settings,)

    @field_validator("brokers")
    @classmethod
    def _addresses(cls, text: str) -> str:
        if not text.strip():
            return ""
        try:
            return format_brokers(parse_brokers(text))
        except HarmonyError as error:
            raise ValueError(error.message.rstrip(".")) from None

    @field_validator("state_dir")
    @classmethod
    def _absolute(cls, path: Path) -> Path:
        check_text(str(path))
        try:
            return path.expanduser().absolute()
        except RuntimeError:
            raise ValueError(f"{str(path)!r}: this user has no home directory; give the whole path") from None

    @model_validator(mode="after")
    def _consistent(self) -> Settings:
        check_unique((workload.id for workload in self.workloads), "workload ")
        return self

    @cached_property
    def stream(self) -> StreamConfig:
        """How event time is cut."""
        return self.advanced.stream.build(StreamConfig, step_ms=round(self.step_s * 1000))

    @cached_property
    def policy(self) -> Policy:
        """What decides."""
        plugins = self.advanced.plugins
        return self.advanced.planning.build(
            Policy,
            fleet=self.fleet,
            epsilon=self.epsilon,
            workloads=tuple(section.build(WorkloadSpec) for section in self.workloads),
            guards=self.advanced.guards.build(GuardLimits, fleet_max_gpus=self.max_gpus),
            proposer=identity("policy", plugins.policy, plugins.options.get("policy", {})),
        )

    @cached_property
    def topics(self) -> Topics:
        """Names and specifications of the topics."""
        most = self.advanced.stream.max_workloads
        return self.advanced.kafka.build(
            Topics, prefix=self.topic_prefix, partitions=self.partitions, max_workloads=most
        )

    @property
    def worker(self) -> WorkerSection:
        """Of this process only; nothing here may change a decision."""
        return self.advanced.worker

    @cached_property
    def watchdog_limits(self) -> WatchdogLimits:
        """When a worker counts as stuck."""
        return self.advanced.watchdogs.build(WatchdogLimits)

    @property
    def data_dir(self) -> Path:
        """Where the embedded Kafka keeps its topics."""
        return self.state_dir / "kafka"

    @property
    def matches(self) -> dict[str, dict[str, str]]:
        """Per workload id, the labels that name it in third-party telemetry."""
        return {section.id: section.match for section in self.workloads if section.match}

    def kafka_client_options(self) -> dict[str, Any]:
        """Keyword arguments for the security of a kafka-python or aiokafka client; empty for plain text.

        Raises:
            HarmonyError: a certificate or password file cannot be read.
        """
        section = self.advanced.kafka
        if section.security_protocol == "PLAINTEXT":
            return {}
        options: dict[str, Any] = {"security_protocol": section.security_protocol}
        try:
            if section.security_protocol.endswith("SSL"):
                context = ssl.create_default_context(cafile=section.ssl_cafile)
                if section.ssl_certfile:
                    context.load_cert_chain(section.ssl_certfile, section.ssl_keyfile)
                options["ssl_context"] = context
            if section.sasl_mechanism:
                password = section.sasl_password.get_secret_value() if section.sasl_password else ""
                if section.sasl_password_file:
                    password = Path(section.sasl_password_file).read_text(encoding="utf-8").strip()
                options |= {
                    "sasl_mechanism": section.sasl_mechanism,
                    "sasl_plain_username": section.sasl_username,
                    "sasl_plain_password": password,
                }
        except UnicodeDecodeError:
            raise HarmonyError(
                f"Cannot use {section.sasl_password_file} of advanced.kafka.sasl_password_file: it is no UTF-8 text.", 2
            ) from None
        except OSError as error:
            files = (section.ssl_cafile, section.ssl_certfile, section.ssl_keyfile, section.sasl_password_file)
            named = error.filename or ", ".join(file for file in files if file)
            raise HarmonyError(
                f"Cannot use {named} of advanced.kafka: {error.strerror or error}. Check the path and its rights."
            ) from error
        return options


@without_garbage_collection()
def load_settings(
    path: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """Settings from flags (`overrides`), environment, file and defaults, in this order of precedence.

    Args:
        path: of the file; None = `$HARMONY_CONFIG`, else `harmony.yaml` here if there is one, else no file.
        overrides: values of flags, nested as the file is; None values count as not given.
        environ: default `os.environ`.

    Raises:
        HarmonyError: with file and line, key path, and what would be right (exit code 2).
    """
    environ = os.environ if environ is None else environ
    check_environment(Settings, environ)
    path = settings_path(path, environ)
    file = read_settings_file(path) if path is not None else no_file()
    given = {key: value for key, value in (overrides or {}).items() if value is not None}
    try:
        return Settings(**_merged(file.content, _from_environment(environ), given))
    except ValidationError as error:
        raise explain(error, Settings, file, environ, given) from None


def settings_path(path: Path | None = None, environ: Mapping[str, str] | None = None) -> Path | None:
    """The file that `load_settings` reads; None = no file."""
    environ = os.environ if environ is None else environ
    if path is None and environ.get(CONFIG_VARIABLE):
        return Path(environ[CONFIG_VARIABLE])
    return Path(DEFAULT_FILE) if path is None and Path(DEFAULT_FILE).is_file() else path


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    source = EnvSettingsSource(Settings)
    source.env_vars = {name.lower(): value for name, value in environ.items() if value != ""}
    try:
        return source()
    except SettingsError as error:
        match = re.search(r'field "(\w+)"', str(error))
        name = ENV_PREFIX + (match.group(1).upper() if match else "*")
        raise HarmonyError(f"environment variable {name}: not valid JSON.", 2) from None
    except RecursionError:
        ours = (name for name in environ if name.upper().startswith(ENV_PREFIX))
        deepest = max(ours, key=lambda name: environ[name].count("[") + environ[name].count("{"))
        raise HarmonyError(f"environment variable {deepest}: its JSON is nested too deep.", 2) from None


def _merged(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Nested mappings merged key by key, later layers win; any other value replaces."""
    merged: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            old = merged.get(key)
            merged[key] = _merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def file_content(policy: Policy, stream: StreamConfig, topics: Topics) -> dict[str, Any]:
    """The mapping of a `harmony.yaml` that loads back as these records."""
    return {
        **top_content(policy, topics, stream, policy.guards),
        "workloads": [WorkloadSection.content(spec) for spec in policy.workloads],
        "advanced": {
            "stream": StreamSection.content(stream),
            "planning": PlanningSection.content(policy),
            "guards": GuardsSection.content(policy.guards),
            "kafka": KafkaSection.content(topics),
        },
    }


# Whether the plug-ins that the settings choose are installed.


def require_chosen(settings: Settings) -> None:
    """See that what is chosen is installed: the policy's version is part of every decision's id.

    Raises:
        HarmonyError: it is not (exit code 2).
    """
    chosen = settings.advanced.plugins
    if chosen.forecaster:
        find("forecaster", chosen.forecaster)
    if chosen.policy:
        find("policy", chosen.policy)
