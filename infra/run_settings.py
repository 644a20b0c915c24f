"""Which of the user's settings reach a `harmony run` and its workers.

Workers for telemetry of the user's own read the user's file and environment themselves. A fleet that is simulated here,
or a recording, brings workloads, policy, steps, topics and a page on this machine; of the user's settings its workers
take what is said of the process, and nothing from the environment could contradict the fleet.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from pydantic import SecretStr
from pydantic_core import to_jsonable_python

from infra.console.errors import HarmonyError
from infra.loopback_port import free_port
from infra.settings.errors import CONFIG_VARIABLE, ENV_PREFIX, variables
from infra.settings.load import Settings
from infra.settings_section import Section

_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared, not bound
_OF_THE_PAGE = {"metrics_token", "web_certfile", "web_keyfile", "web_client_cafile", "instance_id"}


def first_port(settings: Settings) -> int:
    """Of the first worker's page: the one that flag, environment or file names, else any free one."""
    named = settings.web_port if "web_port" in settings.model_fields_set else 0
    return named or free_port()


def page_url(settings: Settings, port: int) -> str:
    """Where a worker under these settings can be reached from this machine; no slash at the end."""
    host = _WILDCARDS.get(settings.web_host, settings.web_host)
    return f"{'https' if settings.worker.web_certfile else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


def own_brokers(settings: Settings) -> str | None:
    """The Kafka that the settings name; None = start one here.

    Raises:
        HarmonyError: they say how to log in, but not where (exit code 2).
    """
    protocol = settings.advanced.kafka.security_protocol
    if not settings.brokers and protocol != "PLAINTEXT":
        raise HarmonyError(
            f"advanced.kafka says {protocol}, but no brokers are named, and a Kafka started here speaks plain text: "
            "set `brokers`, or take advanced.kafka out.",
            2,
        )
    return settings.brokers or None


def process_sections(settings: Settings, *, kafka: bool) -> dict[str, dict[str, Any]]:
    """What was set of `advanced` that is about a worker process and not about the fleet; secrets in clear.

    Args:
        kafka: with the login, for a broker that was named.
    """
    advanced = settings.advanced
    told = {name: _set_keys(getattr(advanced, name)) for name in ("model", "plugins", "watchdogs")}
    told["worker"] = {key: value for key, value in _set_keys(advanced.worker).items() if key not in _OF_THE_PAGE}
    if kafka:
        told["kafka"] = {k: v for k, v in _set_keys(advanced.kafka).items() if k != "pages_retention_bytes"}
    return {name: keys for name, keys in told.items() if keys}


def environment_without_settings(settings: Settings, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment for workers whose file says everything already."""
    environ = os.environ if environ is None else environ
    ours = {*variables(Settings), CONFIG_VARIABLE}
    kept = {name: value for name, value in environ.items() if name.upper() not in ours}
    return kept | {f"{ENV_PREFIX}STATE_DIR": str(settings.state_dir)}


def _set_keys(section: Section) -> dict[str, Any]:
    values = {name: getattr(section, name) for name in section.model_fields_set}
    clear = {name: v.get_secret_value() if isinstance(v, SecretStr) else v for name, v in values.items()}
    return dict(to_jsonable_python(clear))
