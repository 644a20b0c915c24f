"""The documentation: the site builds without a warning, generated pages are current, commands and settings exist."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
import yaml
from typer.main import get_command

from infra.settings import docs as settings_page
from infra.cli.app import app
from infra.docs_hooks import rewritten
from infra.settings.load import Settings

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = {str(page.relative_to(DOCS)): page.read_text() for page in sorted(DOCS.rglob("*.md"))}
# Words of a command that its page leaves for the reader to fill in, and words of other programs behind a pipe.
_FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.DOTALL | re.MULTILINE)


def commands() -> list[tuple[str, str]]:
    """Page and command of every line that calls us."""
    found = []
    for name, text in PAGES.items():
        for language, block in _FENCE.findall(text):
            if language not in ("", "sh", "bash", "console"):
                continue
            for line in dedent(block).replace("\\\n", " ").splitlines():
                line = line.partition(" #")[0].strip().removeprefix("$ ")
                if line.startswith("harmony ") and not re.search(r"[▶─│]|\.\.\.", line):
                    found.append((name, line))
    return found


def test_there_are_commands_to_check() -> None:
    assert len(commands()) > 60


@pytest.mark.parametrize(("page", "line"), commands(), ids=lambda value: str(value)[:60])
def test_every_command_and_option_exists(page: str, line: str) -> None:
    command = get_command(app)
    rest = shlex.split(re.split(r" \| | > | < | && ", line)[0].replace("…", ""))[1:]
    while rest and rest[0] in getattr(command, "commands", {}):
        command = command.commands[rest.pop(0)]  # type: ignore[attr-defined]
    group = getattr(command, "commands", None)
    if group and rest and not rest[0].startswith("-"):
        # "status, explain" and the like are words about commands.
        assert re.search(r"[|,\[A-Z]", rest[0]), f"{page}: no command {rest[0]!r}"
        return
    options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    options |= {"--help", "--install-completion", "--show-completion"}
    unknown = {word.partition("=")[0] for word in rest if re.match(r"--?[a-z]", word)} - options
    assert unknown == set(), f"{page}: {line}"


def test_the_page_of_settings_is_current() -> None:
    assert settings_page.PAGE.read_text() == settings_page.page(), "python -m infra.settings.docs"


def test_the_page_of_settings_has_every_key() -> None:
    def keys(schema: dict[str, object]) -> set[str]:
        definitions: dict[str, dict[str, dict[str, object]]] = schema["$defs"]  # type: ignore[assignment]
        top: dict[str, object] = schema["properties"]  # type: ignore[assignment]
        return set(top) | {key for section in definitions.values() for key in section.get("properties", {})}

    page = settings_page.page()
    shown = set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) | set(
        re.findall(r"^## `advanced\.(\w+)", page, re.MULTILINE)
    )
    assert keys(Settings.model_json_schema()) - shown == set()


@pytest.mark.parametrize("name", PAGES)
def test_settings_shown_are_settings(name: str) -> None:
    """Every YAML block that looks like harmony.yaml is one."""
    top = set(Settings.model_fields)
    for language, block in _FENCE.findall(PAGES[name]):
        if language != "yaml":
            continue
        content = next(iter(yaml.safe_load_all(dedent(block))), None)
        if isinstance(content, dict) and any("workload" in rule for rule in content.get("workloads", [])):
            continue  # rules of a mapping file
        if isinstance(content, dict) and set(content) <= top and ({"workloads", "advanced", "epsilon"} & set(content)):
            Settings(**{"brokers": "", **content})


def test_the_faq_answers_all_twenty_five() -> None:
    assert re.findall(r"^\*\*(\d+)\. ", PAGES["faq.md"], re.MULTILINE) == [str(n) for n in range(1, 26)]


def test_links_out_of_the_site_become_names_and_others_stay() -> None:
    page = DOCS / "concepts/decision.md"
    assert (
        rewritten("[`agents/decide/guards/chain.py`](../../agents/decide/guards/chain.py)", page)
        == "`agents/decide/guards/chain.py`"
    )
    assert (
        rewritten("see [the guards](../../agents/decide/guards/chain.py#L3).", page)
        == "see the guards (`agents/decide/guards/chain.py`)."
    )
    assert rewritten("[runbooks](../operations/runbooks)", page) == "[runbooks](../operations/runbooks/README.md)"
    for kept in (
        "[a](https://example.com/x.md)",
        "[a](time.md#grace)",
        "[a](#here)",
        "[a](no-such-file.md)",
        "![a](x.png)",
    ):
        assert rewritten(kept, page) == kept


def built(*arguments: str) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("mkdocs", reason="mkdocs-material is not installed")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    done = built("--site-dir", str(tmp_path / "site"))
    assert done.returncode == 0, done.stdout + done.stderr
    pages = {str(page.relative_to(tmp_path / "site")) for page in (tmp_path / "site").rglob("*.html")}
    assert {"index.html", "quick-start.html", "settings.html", "operations/kubernetes.html"} <= pages
    # Nothing is fetched from elsewhere when a page is read.
    index = (tmp_path / "site/index.html").read_text()
    assert re.findall(r'(?:src|href)="(https?:)?//(?!127)[^"]*\.(?:js|css|woff2?)', index) == []


def test_a_dead_link_would_stop_the_build(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "index.md").write_text("[gone](gone.md)\n")
    config = tmp_path / "mkdocs.yml"
    settings = (ROOT / "mkdocs.yml").read_text().split("\nnav:")[0].replace("docs_dir: docs", f"docs_dir: {docs}")
    config.write_text(settings.replace("[infra/", f"[{ROOT}/infra/"))
    done = built("--config-file", str(config), "--site-dir", str(tmp_path / "site"))
    assert done.returncode != 0
    assert "gone.md" in done.stdout + done.stderr
