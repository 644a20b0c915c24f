"""Build hook of the wheel: the packages of the repository are installed as `harmony.streams`, `harmony.agents`, ...

Names like `agents` and `model` at the top of site-packages collide with other projects (docs/adr/0040). The repository
keeps its short imports. When a wheel is built, hatchling selects the files and names their places (pyproject.toml), and
this hook replaces each Python file by a copy whose imports start with `harmony.`. An editable install needs no copies:
`checkout/harmony` lies on its path instead.
"""

from __future__ import annotations

import ast
import re
import tempfile
from collections.abc import Collection, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGES: Final = frozenset({"streams", "agents", "model", "infra"})
"""Top-level packages of the repository."""

PARENT: Final = "harmony"
"""The one package that the wheel installs."""

_CODE: Final = re.compile(
    rf"(?:^|[;:])[ \t]*(?:import|from) +({'|'.join(sorted(PACKAGES))})(?:\.\w+)*(?: +import\b|\s*$)", re.MULTILINE
)
_FROM: Final = re.compile(rb"from(?:[ \t\f]|\\\r?\n)+")


# The names of the Python interface (`infra.api`), loaded when they are asked for: `harmony --help` needs none of them.
_INIT: Final = '''"""{description}"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harmony.infra.api import *

__version__ = "{version}"


def __getattr__(name: str) -> Any:
    if not name.startswith("_"):
        from harmony.infra import api

        if name in api.__all__:
            return getattr(api, name)
    raise AttributeError(f"module {{__name__!r}} has no attribute {{name!r}}")


def __dir__() -> list[str]:
    from harmony.infra import api

    return [*globals(), *api.__all__]
'''


class BareNameError(ValueError):
    """A source names a module of the repository where the rewriting cannot follow."""


def rewritten(source: bytes, modules: Collection[str] = (), where: str = "source") -> bytes:
    """The same source for the wheel: every import of the four packages starts with `harmony.`.

    Lines keep their numbers. Docstrings and comments stay as they are.

    Args:
        source: UTF-8 text of one Python file.
        modules: dotted names of all modules in the repository; a string that names one of them is refused.
        where: name of the file for errors.

    Raises:
        BareNameError: a bare import is left, or a string holds the name of a module.
    """
    nodes = list(ast.walk(ast.parse(source, where)))
    for line, name in _names_in_strings(nodes, modules):
        raise BareNameError(
            f"{where}:{line}: a string names the module {name}, which the wheel calls {PARENT}.{name}; "
            "take the name from __name__, __package__ or the imported module instead"
        )
    lines = source.splitlines(keepends=True)
    # From the end, so that the places of earlier edits stay valid.
    for line, start, end, text in sorted(_edits(nodes, lines), reverse=True):
        lines[line] = lines[line][:start] + text.encode() + lines[line][end:]
    result = b"".join(lines)
    if left := next(_bare_imports(ast.walk(ast.parse(result, where))), None):
        raise BareNameError(f"{where}:{left.lineno}: an import without `{PARENT}.` is left")
    return result


def _edits(nodes: Iterable[ast.AST], lines: list[bytes]) -> Iterator[tuple[int, int, int, str]]:
    """Line (from 0), first and last byte within it, and the text that replaces them."""
    for node in _bare_imports(nodes):
        if isinstance(node, ast.ImportFrom):
            line, start = node.lineno - 1, node.col_offset
            # The keyword and the name may stand on different lines, joined by backslashes.
            opening = _FROM.match(b"".join([lines[line][start:], *lines[line + 1 : node.end_lineno]]))
            if opening is None:
                raise BareNameError(f"line {node.lineno}: an import that does not begin with `from`")
            skipped = opening.group().count(b"\n")
            at = len(opening.group().rpartition(b"\n")[2]) + (0 if skipped else start)
            yield line + skipped, at, at, f"{PARENT}."
            continue
        for alias in node.names:
            top, dot, _ = alias.name.partition(".")
            if top not in PACKAGES:
                continue
            full = f"{PARENT}.{alias.name}"
            if alias.asname is not None:
                text = f"{full} as {alias.asname}"
            elif dot:
                # `import infra.page` loads the module and binds `infra`.
                text = f"{full} as _{alias.name.replace('.', '_')}, {PARENT}.{top} as {top}"
            else:
                text = f"{full} as {top}"
            yield alias.lineno - 1, alias.col_offset, alias.end_col_offset or 0, text


def _bare_imports(nodes: Iterable[ast.AST]) -> Iterator[ast.Import | ast.ImportFrom]:
    for node in nodes:
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module or ""]
        else:
            continue
        if any(name.partition(".")[0] in PACKAGES for name in names):
            yield node


def _names_in_strings(nodes: Iterable[ast.AST], modules: Collection[str]) -> Iterator[tuple[int, str]]:
    """Line and name of strings that are a module's dotted name, hold code that imports it, or pass it after `-m`."""
    nodes = list(nodes)
    prose = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            if "." in node.value and node.value in modules:
                yield node.lineno, node.value
            if code := _CODE.search(node.value):
                yield node.lineno, code[1]
        elif isinstance(node, ast.List | ast.Tuple):
            strings = [part.value if isinstance(part, ast.Constant) else None for part in node.elts]
            for option, value in pairwise(strings):
                if option == "-m" and isinstance(value, str) and value.partition(".")[0] in PACKAGES:
                    yield node.lineno, value


def module_name(path: str) -> str:
    """Dotted name of the module in a file, given by its path below the repository's root with `/`."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


class WheelHook(BuildHookInterface[Any]):
    """Puts rewritten copies in the place of the sources, and adds `harmony/__init__.py` and `harmony/py.typed`."""

    _copies: tempfile.TemporaryDirectory[str] | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called before the wheel is written; an editable one is left as it is."""
        if version == "editable":
            return
        self._copies = tempfile.TemporaryDirectory(prefix="harmony-wheel-")
        folder = Path(self._copies.name)
        selected = [
            file for file in self.build_config.builder.recurse_selected_project_files() if file.path.endswith(".py")
        ]
        modules = {module_name(Path(file.relative_path).as_posix()) for file in selected}
        for file in selected:
            copy = folder / file.distribution_path
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(rewritten(Path(file.path).read_bytes(), modules, file.relative_path))
            build_data["force_include"][str(copy)] = file.distribution_path
        init = _INIT.format(description=self.metadata.core.description, version=self.metadata.version)
        (folder / "__init__.py").write_text(init, encoding="utf-8")
        (folder / "py.typed").touch()
        for name in ("__init__.py", "py.typed"):
            build_data["force_include"][str(folder / name)] = f"{PARENT}/{name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Called after the wheel is written."""
        if self._copies is not None:
            self._copies.cleanup()
