"""What a profile may say: which metrics of an exporter make which field of a telemetry record."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, StringConstraints, field_validator, model_validator

from infra.settings.schema import Section
from streams.catalogue import DEFAULT_CATALOGUE, of_source
from streams.records.limits import bounds_of
from streams.records.schema import FleetName

Kind = Literal["requests", "gpu", "fleet"]
MetricName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_:][A-Za-z0-9_:.\-]*$", max_length=200)]
Template = Annotated[str, StringConstraints(pattern=r"^[^\s]+$", max_length=200)]

PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_.]*)\}")

FIELDS: dict[Kind, frozenset[str]] = {
    "requests": frozenset(bounds_of(of_source(DEFAULT_CATALOGUE, "requests"))),
    "gpu": frozenset(bounds_of(of_source(DEFAULT_CATALOGUE, "gpu"))),
    "fleet": frozenset(get_args(FleetName)),
}
HISTOGRAMS = frozenset(f for i in DEFAULT_CATALOGUE if i.rule == "p95" for f in i.fields)


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _pattern_lists(value: Any) -> Any:
    return {name: _listed(item) for name, item in value.items()} if isinstance(value, dict) else value


Where = dict[str, tuple[str, ...]]
_WHERE = "Only series with these labels; * and ? match; a list is one of these."
_OR_WITHOUT = "Besides where: series of parts that have no series of this metric, if others have."


class Selection(Section):
    """Series of some metrics, put together into one number."""

    metric: tuple[MetricName, ...] = Field(description="Names that are added up; all must be there.", min_length=1)
    where: Where = Field(default_factory=dict, description=_WHERE)
    or_without: MetricName | None = Field(None, description=_OR_WITHOUT)
    combine: Literal["sum", "mean", "max", "min", "count"] = Field(
        "sum", description="Several series of one metric and part."
    )
    any_bits: int | None = Field(None, description="Of a bit mask: 1 when any of these bits is set, else 0.", gt=0)

    _list = field_validator("metric", mode="before")(_listed)
    _patterns = field_validator("where", mode="before")(_pattern_lists)


class FieldChoice(Selection):
    """One way to obtain a field."""

    minus: tuple[MetricName, ...] = Field((), description="Names that are subtracted; all must be there.")
    plus: Selection | None = Field(None, description="Added to it; all must be there.")
    scale: float = Field(1.0, description="Factor, such as 0.01 for percent or 1048576 for MiB.", gt=0)
    per: Selection | None = Field(None, description="Divide by this; nothing when it is 0.")
    increase: bool = Field(default=False, description="Divide the increases since the last reading; needs per.")
    complement: bool = Field(default=False, description="1 minus the value.")
    positive: bool = Field(default=False, description="Only while its first metric, a counter, is above 0.")
    steady: bool = Field(default=False, description="Never falls unless its first metric, a counter, does.")
    conserved: tuple[Selection, ...] = Field(
        (),
        description="Of a steady field: requests waiting, running and finished; what their sum loses is not awaited.",
    )
    floor: float | None = Field(None, description="Not less than this.")

    _minus_list = field_validator("minus", mode="before")(_listed)

    @model_validator(mode="after")
    def _sound(self) -> FieldChoice:
        if self.increase and self.per is None:
            raise ValueError("increase needs per: what the increase is divided by")
        if self.conserved and not self.steady:
            raise ValueError("conserved needs steady: true")
        return self

    def names(self) -> tuple[str, ...]:
        """Every metric that it reads."""
        selections = [s for s in (self, self.plus, self.per, *self.conserved) if s is not None]
        others = [s.or_without for s in selections if s.or_without is not None]
        return (*self.minus, *(name for s in selections for name in s.metric), *others)


class HistogramChoice(Section):
    """One way to obtain a histogram."""

    metric: MetricName = Field(description="Base name, without _bucket.")
    scale: float = Field(1.0, description="Of bounds and sum, such as 0.001 for milliseconds.", gt=0)
    where: Where = Field(default_factory=dict, description=_WHERE)
    or_without: MetricName | None = Field(None, description=_OR_WITHOUT)

    _patterns = field_validator("where", mode="before")(_pattern_lists)


def _choices(value: Any) -> Any:
    """`name`, `{metric: …}` or a list of both -> a list of mappings."""
    items = value if isinstance(value, list | tuple) else [value]
    return [{"metric": item} if isinstance(item, str) else item for item in items]


Choices = tuple[FieldChoice, ...]
HistogramChoices = tuple[HistogramChoice, ...]


class ExporterProfile(Section):
    """How one exporter is read."""

    name: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]{0,40}$")] = Field(description="Of the profile.")
    about: str = Field("", description="One line for people.", max_length=200)
    kind: Kind = Field(description="requests, gpu or fleet.")
    opt_in: bool = Field(default=False, description="Used only when named with --profile.")
    replica: tuple[Template, ...] = Field(
        ("{pod}", "{instance}"), description="Names the process that reports; the first that can be filled is taken."
    )
    parts: tuple[str, ...] = Field(
        (),
        description="Labels that tell apart the devices of a replica, each a source; of kind requests the engines of a "
        "process, which is one source: they are added up, ratios averaged.",
    )
    labels: tuple[str, ...] | None = Field(
        None,
        description="All other labels that this exporter writes; series that differ in any further one are copies.",
    )
    workload: tuple[Template, ...] = Field(
        ("{namespace}/{pod_owner}",), description="Where no rule names the workload: the first that can be filled."
    )
    blanks: tuple[float, ...] = Field((), description="Values that stand for nothing measured.")
    fields: dict[str, Choices] = Field(description="Field -> ways to obtain it; the first possible one is taken.")
    histograms: dict[str, HistogramChoices] = Field(default_factory=dict, description="The same for histograms.")

    @field_validator("replica", "workload", "parts", "labels", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return _listed(value)

    @field_validator("fields", "histograms", mode="before")
    @classmethod
    def _short_forms(cls, value: Any) -> Any:
        return {name: _choices(item) for name, item in value.items()} if isinstance(value, dict) else value

    @model_validator(mode="after")
    def _check_names(self) -> ExporterProfile:
        field_names = FIELDS[self.kind]
        for name in self.fields:
            if name not in field_names:
                raise ValueError(f"{self.kind} has no field {name!r}; it has {', '.join(sorted(field_names))}")
        for name in self.histograms:
            if self.kind != "requests" or name not in HISTOGRAMS:
                raise ValueError(f"no histogram {name!r}; kind requests has {', '.join(sorted(HISTOGRAMS))}")
        if not self.fields and not self.histograms:
            raise ValueError("a profile needs at least one field")
        return self


class WorkloadRule(Section):
    """Labels -> workload."""

    match: dict[str, str] = Field(description="Labels that must be there; * and ? match.", min_length=1)
    workload: Template = Field(description="Its id; may hold {label}.")


class MappingFile(Section):
    """What `--mapping FILE` may hold."""

    workloads: tuple[WorkloadRule, ...] = Field((), description="Rules, the first that matches counts.")
    profiles: tuple[ExporterProfile, ...] = Field((), description="More exporters, or other ways to read a known one.")
