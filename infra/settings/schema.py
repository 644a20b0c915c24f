"""The sections of `harmony.yaml`, made from the records that use their values.

A key is declared once: name, type, default, bounds and one line of explanation stand at the field of the record, in
`Annotated[type, msgspec.Meta(...)]`. A field without a description is no key. A field in milliseconds (`grace_ms`) is
a key in seconds (`grace_s`). `Meta.extra` may hold `key`, the name in the file where it differs, and `optional` where
the file may leave a section empty. A key `group.name` stands in the section of that group; `top` is the file itself.

Keys that no record holds, such as those of the connection, are declared at the section. `infra.settings.workload` has
the sections of a workload.
"""

from __future__ import annotations

import keyword
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar, get_args, get_origin, get_type_hints

import orjson
from msgspec import Meta
from pydantic import BaseModel, ConfigDict, Field, SecretStr, StringConstraints, field_validator, model_validator

from agents.policy import GuardLimits, Policy
from infra.console.text import printable
from infra.settings.limits import PluginKind, PluginLimits, WatchdogLimits
from model.network.spec import SHIPPED_NAME
from streams.config import StreamConfig
from streams.topics import Topics

# No number of the file may be larger: seconds beyond it have no 64-bit count of milliseconds.
MAX_NUMBER = 1e15

_BOUNDS = ("ge", "gt", "le", "lt", "pattern", "min_length", "max_length")
_MS_PER_S = 1000
Record = TypeVar("Record")


class Section(BaseModel):
    """A mapping of the file: frozen, and unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, allow_inf_nan=False)

    @field_validator("*")
    @classmethod
    def _usable(cls, value: Any) -> Any:
        if isinstance(value, int | float) and abs(value) > MAX_NUMBER:
            # An integer may have more digits than a float can tell.
            raise ValueError(f"must lie within -{MAX_NUMBER:g} and {MAX_NUMBER:g}, got {printable(str(value), 40)}")
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
    seen_names: set[str] = set()
    for name in names:
        if name in seen_names:
            raise ValueError(f"{what}{name!r} is declared twice")
        seen_names.add(name)


Role = Annotated[str, StringConstraints(pattern=r"^(all|(ingest|forecast|decide)(,(ingest|forecast|decide))*)$")]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


@dataclass(frozen=True, slots=True)
class RecordKey:
    """A field of a record as a key of the file.

    Attributes:
        field: name in the record.
        group: section within the record's own that holds the key; empty = the record's own section.
        name: attribute of the section.
        alias: name in the file where it is no attribute name, such as `from`.
        kind: type of the value in the file; a record stands for its section.
        info: default, bounds and explanation, as arguments of `pydantic.Field`.
        optional: the file may leave the section empty.
        per_unit: units of the field in one of the file: 1000 for milliseconds, else 1.
    """

    field: str
    group: str
    name: str
    alias: str | None
    kind: Any
    info: Mapping[str, Any]
    optional: bool
    per_unit: int


@cache
def record_keys(record: type, like: type | None = None) -> tuple[RecordKey, ...]:
    """The keys that the fields of a dataclass declare, in their order.

    Args:
        like: a record whose field of the same name explains a field that has no explanation of its own.
    """
    hints = get_type_hints(record, include_extras=True)
    explained = get_type_hints(like, include_extras=True) if like else {}
    keys = []
    for field in fields(record):
        hint = hints[field.name]
        meta = _meta(hint) or _meta(explained.get(field.name))
        if meta is None:
            continue
        extra = meta.extra or {}
        seconds = f"{field.name.removesuffix('_ms')}_s" if field.name.endswith("_ms") else field.name
        group, _, name = str(extra.get("key", seconds)).rpartition(".")
        in_ms = field.name.endswith("_ms") and name.endswith("_s")
        per_unit = _MS_PER_S if in_ms else 1
        usable = not keyword.iskeyword(name) and name.islower()
        info = {bound: value for bound in _BOUNDS if (value := getattr(meta, bound)) is not None}
        default: Any = ... if field.default is MISSING else field.default
        if in_ms:
            info = {bound: value / per_unit for bound, value in info.items()}
            default /= per_unit
        keys.append(
            RecordKey(
                field=field.name,
                group=group,
                name=name if usable else field.name,
                alias=None if usable else name,
                kind=float if in_ms else get_args(hint)[0] if hasattr(hint, "__metadata__") else hint,
                info={"default": default, "description": meta.description, **info},
                optional=bool(extra.get("optional")),
                per_unit=per_unit,
            )
        )
    return tuple(keys)


def _meta(hint: Any) -> Meta | None:
    return next((m for m in getattr(hint, "__metadata__", ()) if isinstance(m, Meta) and m.description), None)


def declared(record: type, name: str) -> Any:
    """The field of a model for one field of a record: default, explanation and bounds as the record declares them."""
    (key,) = [k for k in record_keys(record) if k.field == name]
    return Field(**key.info)


if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)  # pydantic has no public name for it


class _RecordSectionType(ModelMetaclass):
    """Adds the keys of a record to the body of a section."""

    def __new__(
        cls,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        record: type | None = None,
        group: str = "",
        like: type | None = None,
        after: Mapping[str, str] | None = None,
        **options: Any,
    ) -> type:
        """Make the class.

        Args:
            record: its fields are keys of the section, behind those of the body. The body may give a key of the record
                another type or default.
            group: only those of this group.
            like: as of `record_keys`.
            after: by a key of the body, the key that it follows.
        """
        if record is not None:
            own: dict[str, Any] = namespace.get("__annotations__", {})
            keys = [declaration for declaration in record_keys(record, like) if declaration.group == group]
            kinds = {key: kind for key, kind in own.items() if key not in {declaration.name for declaration in keys}}
            for declaration in keys:
                kind, namespace[declaration.name] = _section_field(declaration, namespace.get(declaration.name))
                kinds[declaration.name] = own.get(declaration.name, kind)
            for moved, before in (after or {}).items():
                kind = kinds.pop(moved)
                order = list(kinds.items())
                at = 1 + [name for name, _ in order].index(before)
                kinds = dict([*order[:at], (moved, kind), *order[at:]])
            namespace["__annotations__"] = kinds
        section = super().__new__(cls, name, bases, namespace, **options)
        if record is not None:
            fields = section.model_fields  # type: ignore[attr-defined]
            section.declarations = tuple(  # type: ignore[attr-defined]
                key for key in record_keys(record, like) if (key.group or key.name) in fields
            )
            if not group:
                _SECTIONS[record] = section
        return section


_SECTIONS: dict[type, Any] = {}


def _section_field(declaration: RecordKey, default: Any) -> tuple[Any, Any]:
    """Annotation and `pydantic.Field` of a key; `default` in place of the record's, None = the record's."""
    info = dict(declaration.info)
    if default is not None:
        info |= {"default": default, "validate_default": True}
    parts = get_args(declaration.kind)
    if get_origin(declaration.kind) is tuple and parts[0] in _SECTIONS:
        entries: Any = _SECTIONS[parts[0]]
        return tuple[entries, ...], Field(**info)
    section = _SECTIONS.get(declaration.kind) if isinstance(declaration.kind, type) else None
    if section is not None:
        del info["default"]
        if declaration.optional:
            return section | None, Field(None, **info)
        return section, Field(default_factory=section, **info)
    return declaration.kind, Field(alias=declaration.alias, **info)


class RecordSection(Section, metaclass=_RecordSectionType):
    """A section whose keys are the fields of a record."""

    declarations: ClassVar[tuple[RecordKey, ...]] = ()

    if TYPE_CHECKING:

        def __init_subclass__(
            cls,
            record: type | None = None,
            group: str = "",
            like: type | None = None,
            after: Mapping[str, str] | None = None,
        ) -> None: ...

        def __getattr__(self, name: str) -> Any: ...

    def build(self, record: type[Record], **given: Any) -> Record:
        """The record with the values of this section, and defaults for what the file leaves out.

        Args:
            given: values of further fields, or in place of those of the section.
        """
        for key in self.declarations:
            holder = getattr(self, key.group, None) if key.group else self
            if key.field in given or holder is None:
                continue
            value = getattr(holder, key.name)
            if isinstance(value, RecordSection):
                given[key.field] = value.build(key.kind)
            elif value and isinstance(value, tuple) and isinstance(value[0], RecordSection):
                given[key.field] = tuple(section.build(get_args(key.kind)[0]) for section in value)
            elif key.per_unit != 1:
                given[key.field] = round(value * key.per_unit)
            elif value is not None or not key.optional:
                given[key.field] = value
        return record(**given)

    @classmethod
    def content(cls, record: Any) -> dict[str, Any]:
        """A mapping of the file from which `build` makes the record again; what is empty is left out."""
        content: dict[str, Any] = {}
        for key in cls.declarations:
            value = getattr(record, key.field)
            if not _is_left_out(value, key.optional):
                holder = content.setdefault(key.group, {}) if key.group else content
                holder[key.alias or key.name] = _file_value(value, key.per_unit)
        return content


def _is_left_out(value: Any, optional: bool) -> bool:
    """A section that the file may leave empty is shown, since mode act asks for it."""
    if type(value) in _SECTIONS:
        return not value or (not optional and value == type(value)())
    return value is None or value in ("", ())


def _file_value(value: Any, per_unit: int) -> Any:
    if type(value) in _SECTIONS:
        return _SECTIONS[type(value)].content(value)
    if isinstance(value, tuple):
        return [_file_value(entry, per_unit) for entry in value]
    return value / per_unit if per_unit != 1 else value


def top_content(*records: Any) -> dict[str, Any]:
    """The keys at the top of the file that these records declare."""
    return {
        key.name: _file_value(getattr(record, key.field), key.per_unit)
        for record in records
        for key in record_keys(type(record))  # type: ignore[arg-type]
        if key.group == "top"
    }


class StreamSection(RecordSection, record=StreamConfig):
    """How event time is cut."""

    @model_validator(mode="after")
    def _skew_within_grace(self) -> StreamSection:
        if self.skew_s > self.grace_s:
            raise ValueError(
                f"skew_s ({self.skew_s:g}) is above grace_s ({self.grace_s:g}): one fast clock would make others late"
            )
        return self


class PlanningSection(RecordSection, record=Policy):
    """How the fleet is forecast and planned."""


class GuardsSection(RecordSection, record=GuardLimits):
    """Limits of every command."""


class KafkaSection(RecordSection, record=Topics):
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


class WatchdogsSection(RecordSection, record=WatchdogLimits):
    """How long a worker may stand still."""


class PluginsSection(RecordSection, record=PluginLimits, after={"options": "pause_calls"}):
    forecaster: str = key("", "Name of an installed forecaster, asked before the built-in ones; empty = none.")
    policy: str = key("", "Name of an installed policy, asked after the planner; empty = none.")
    options: dict[PluginKind, dict[str, Any]] = key({}, "Per kind (forecaster, ...), what its factory is given.")

    @field_validator("options")
    @classmethod
    def _check_serializable(cls, options: dict[PluginKind, dict[str, Any]]) -> dict[PluginKind, dict[str, Any]]:
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
