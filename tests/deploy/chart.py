"""The chart, rendered by helm; and the schemas of the objects, as kubeconform reads them."""

from __future__ import annotations

import functools
import json
import subprocess
from pathlib import Path
from typing import Any

import yaml

from tests.programs import ROOT, found

CHART = ROOT / "infra/deploy/helm/harmony"
EVERYTHING = Path(__file__).with_name("everything.yaml")
SCHEMAS: dict[str, Any] = json.loads((ROOT / "tests/infra/actuate/kubernetes-schemas.json").read_text())
# Of the Prometheus operator, whose schemas we do not have.
OTHERS = ("ServiceMonitor", "PrometheusRule")
NAMESPACE, RELEASE = "scaling", "blue"


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([found("helm") or "helm", *arguments], capture_output=True, text=True, check=False)


def template(*more: str) -> subprocess.CompletedProcess[str]:
    return helm("template", RELEASE, str(CHART), "--namespace", NAMESPACE, "--kube-version", "1.36.3", *more)


@functools.cache
def rendered(*more: str) -> tuple[dict[str, Any], ...]:
    """The objects; with `all`, everything is switched on."""
    flags = ("--values", str(EVERYTHING)) if more == ("all",) else more
    done = template(*flags)
    assert done.returncode == 0, done.stderr[-2000:]
    return tuple(d for d in yaml.safe_load_all(done.stdout) if d)


def of_kind(objects: tuple[dict[str, Any], ...], *kinds: str) -> list[dict[str, Any]]:
    return [d for d in objects if d["kind"] in kinds]


def write_schemas(directory: Path) -> str:
    """One file per kind, self-contained; returns the location as `kubeconform` wants it."""
    for name, schema in SCHEMAS["kinds"].items():
        version, kind = name.split()
        group, _, number = version.rpartition("/")
        prefix = f"{group.split('.')[0]}-" if group else ""
        body = {**schema, "$defs": SCHEMAS["$defs"], "$schema": "https://json-schema.org/draft/2020-12/schema"}
        (directory / f"{kind.lower()}-{prefix}{number}.json").write_text(json.dumps(body))
    return f"{directory}/{{{{ .ResourceKind }}}}{{{{ .KindSuffix }}}}.json"
