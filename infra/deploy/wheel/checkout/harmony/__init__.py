"""`harmony` in a checkout: `harmony.agents.records` is the very module `agents.records`, under its installed name.

`harmony.forecast` and the other names of `infra.api` are loaded when they are asked for.

An editable install puts this folder on the path. The wheel has no such file: its `harmony` holds the packages.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from types import CodeType, ModuleType
from typing import Any

_PACKAGES = frozenset({"streams", "agents", "model", "infra"})

try:
    __version__ = version("harmony-scaler")
except PackageNotFoundError:  # a checkout on the path that nobody installed
    __version__ = "unknown"


def __getattr__(name: str) -> Any:
    if not name.startswith("_") and name not in _PACKAGES:
        api = import_module("infra.api")
        if name in api.__all__:
            return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *import_module("infra.api").__all__]


class _AliasLoader(InspectLoader):
    """Loads a module of the checkout and hands out the same object."""

    def __init__(self, spec: ModuleSpec) -> None:
        self._spec = spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:  # noqa: ARG002
        module = import_module(self._spec.name)
        # The import system is about to write the alias's spec into the module.
        self._spec = module.__spec__ or self._spec
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run: the module has been imported. It gets its own spec back."""
        module.__spec__ = self._spec

    def is_package(self, fullname: str) -> bool:  # noqa: ARG002
        return self._spec.submodule_search_locations is not None

    def get_code(self, fullname: str) -> CodeType | None:  # noqa: ARG002
        """What `python -m harmony.infra` runs."""
        loader: Any = self._spec.loader
        return loader.get_code(self._spec.name)

    def get_source(self, fullname: str) -> str | None:  # noqa: ARG002
        loader: Any = self._spec.loader
        return loader.get_source(self._spec.name)


class _AliasFinder(MetaPathFinder):
    """Finds `harmony.X` where `X` is."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        parent, _, name = fullname.partition(".")
        if parent != __name__ or name.partition(".")[0] not in _PACKAGES:
            return None
        own = find_spec(name)
        if own is None:
            return None
        spec = ModuleSpec(
            fullname, _AliasLoader(own), origin=own.origin, is_package=own.submodule_search_locations is not None
        )
        spec.submodule_search_locations = own.submodule_search_locations
        return spec


# Before the finder of files, which would load a second copy through the path of the parent package.
sys.meta_path.insert(0, _AliasFinder())
