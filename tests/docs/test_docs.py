"""What the documents name exists: paths, commands, options, targets, settings, words, tables."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name

import click
import pytest

import taskbridge
from benchmarks import figures
from benchmarks import page as figures_page
from benchmarks.everything import BENCHMARKS, PAGE
from taskbridge.cli.main import cli
from taskbridge.observe.metrics import METRICS
from taskbridge.settings import NAMED_REDIS, Settings
from tests.scraping import SAMPLES
from verification import redis_servers
from verification.printing import protocol_text, reference_text
from verification.printing.printed import Printed

COMMANDS = cli.commands

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])
TARGETS = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
VARIABLES = {f"TASKBRIDGE_{name.upper()}" for name in Settings.__slots__ if name != "redis_urls"}
# Settings of the tests, of the command line and of Django projects, which are not in `Settings`.
OTHER_VARIABLES = {
    "TASKBRIDGE_DATABASE",
    "TASKBRIDGE_DATA_DIR",
    "TASKBRIDGE_TEST_POSTGRES_URL",
    "TASKBRIDGE_TEST_REDIS_URL",
}


def code(page: Path) -> list[str]:
    """Return what the page shows as code: fenced blocks line by line, and words in backticks."""
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    shells = [block for language, block in blocks if language in ("", "console", "bash", "sh")]
    return [line for block in shells for line in block.splitlines()] + re.findall(r"`([^`\n]+)`", text)


def everywhere() -> list[tuple[str, str]]:
    return [(page.relative_to(ROOT).as_posix(), text) for page in PAGES for text in code(page)]


def links(page: Path) -> list[tuple[Path, str]]:
    """Return where the links of a page lead that are no addresses, each with the page."""
    targets = re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    return [(page, target) for target in targets if "://" not in target]


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached, left = set[Path](), [ROOT / "README.md"]
    while left:
        page = left.pop()
        if page.suffix == ".md" and page.exists() and page not in reached:
            reached.add(page)
            left += [(page.parent / target).resolve() for _, target in links(page)]
    assert sorted(page.relative_to(ROOT).as_posix() for page in set(PAGES) - reached) == []


def test_the_site_has_every_page_and_no_other() -> None:
    navigation = re.findall(r": ([\w./-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    pages = [page.relative_to(ROOT / "docs").as_posix() for page in ROOT.glob("docs/**/*.md")]
    pages += [page.name for page in ROOT.glob("*.md") if page.name != "README.md"]
    assert sorted(navigation) == sorted(pages)


def test_the_reference_names_what_exists_and_lists_every_public_name() -> None:
    text = (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    named = {name: resolve_name(name) for name in re.findall(r"^::: (taskbridge[\w.]*)", text, re.MULTILINE)}
    shown = re.findall(r"^::: (taskbridge[\w.]*)\n(?:    .*\n)*?      members: \[(.*)\]", text, re.MULTILINE)
    assert [(of, name) for of, names in shown for name in names.split(", ") if not hasattr(named[of], name)] == []
    methods = set(dir(named["taskbridge.producer.producer.Bridge"]))
    assert {name for name in taskbridge.__all__ if f"taskbridge.{name}" not in named} - methods == set()


def test_every_path_exists() -> None:
    named = [
        (page, path)
        for page, text in everywhere()
        for path in re.findall(
            r"(?<![\w./])((?:taskbridge|tests|verification|docs|examples|migrations|\.ci)/[\w./-]*)", text
        )
    ]
    assert len(named) > 10
    assert [(page, path) for page, path in named if not (ROOT / path).exists()] == []


def test_every_link_between_the_documents_leads_somewhere() -> None:
    targets = [one for page in PAGES for one in links(page)]
    assert targets
    assert [(page.name, target) for page, target in targets if not (page.parent / target).exists()] == []


def test_every_test_that_is_named_exists() -> None:
    there = {
        name
        for path in ROOT.glob("tests/**/test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)
    }
    named = [(page, name) for page, text in everywhere() for name in re.findall(r"^test_\w+$", text)]
    assert named
    assert [(page, name) for page, name in named if name not in there] == []


def test_every_make_target_exists() -> None:
    named = [(page, target) for page, text in everywhere() for target in re.findall(r"\bmake ([a-z][a-z-]*)", text)]
    assert named
    assert [(page, target) for page, target in named if target not in TARGETS] == []


def test_every_command_and_option_exists() -> None:
    named = [
        (page, name, options)
        for page, text in everywhere()
        for name, options in re.findall(r"(?<![\w.-])(?<!-A )taskbridge ([a-z]+)((?: +[^|#;&]*)?)", text)
    ]
    assert named
    for page, name, rest in named:
        assert name in COMMANDS, f"{page}: taskbridge {name}"
        command = COMMANDS[name]
        if isinstance(command, click.Group) and (below := re.match(r" +([a-z][a-z-]*)", rest)):
            assert below[1] in command.commands, f"{page}: taskbridge {name} {below[1]}"
            command = command.commands[below[1]]
        known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
        for option in re.findall(r"(?<!\S)(--[a-z-]+)", rest):
            assert option in known, f"{page}: taskbridge {name} {option}"


def test_every_variable_exists_and_every_setting_is_documented() -> None:
    found = {variable for page in PAGES for variable in re.findall(r"\bTASKBRIDGE_[A-Z_]+\b", page.read_text("utf-8"))}
    named = {name for name in found if not name.startswith(NAMED_REDIS)}
    assert named - VARIABLES - OTHER_VARIABLES == set()
    assert VARIABLES - named == set()
    assert found - named


def test_every_default_is_the_one_that_is_documented() -> None:
    rows = re.findall(
        r"^\| `TASKBRIDGE_([A-Z_]+)` \| `?([^|`]*?)`? \|",
        (ROOT / "docs/reference/settings.md").read_text(),
        re.MULTILINE,
    )
    documented = {name.lower(): text for name, text in rows}
    for name in Settings.__slots__:
        default = getattr(Settings(), name)
        if isinstance(default, int | float) or name in ("key_prefix", "metrics_address"):
            assert documented[name] == (default if isinstance(default, str) else f"{default:g}"), name


def test_every_python_example_compiles_and_what_it_imports_is_there() -> None:
    own = {path.stem for path in (ROOT / "examples").rglob("*") if path.is_dir() or path.suffix == ".py"}
    blocks = [
        (page.name, block)
        for page in PAGES
        for block in re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    ]
    assert blocks
    for page, block in blocks:
        compile(block, page, "exec")
        for module, names in re.findall(r"^from (taskbridge[.\w]*) import (.+)$", block, re.MULTILINE):
            assert {name.strip() for name in names.split(",")} <= set(import_module(module).__all__), page
        for name in re.findall(r"^(?:from|import) (\w+)", block, re.MULTILINE):
            assert name in own or find_spec(name) is not None, page


PRINTED = {Printed(protocol_text.PAGE, name): text_of for name, text_of in protocol_text.PARTS.items()}


@pytest.mark.parametrize(
    ("part", "text_of"), (PRINTED | reference_text.PARTS | {redis_servers.PAGE: redis_servers.markdown}).items()
)
def test_the_pages_show_the_tables_that_the_code_has(part: Printed, text_of: Callable[[], str]) -> None:
    assert part.shown() == text_of(), "run `make docs`"


def test_the_pages_show_the_stored_figures_of_the_benchmarks() -> None:
    stored = figures.read(ROOT / "docs" / "explanation" / figures.FILE)
    assert list(stored) == [benchmark.name for benchmark in BENCHMARKS]
    shown = (ROOT / "docs" / "explanation" / PAGE).read_text(encoding="utf-8")
    assert shown == figures_page.rendered(BENCHMARKS, stored), "run `make docs`"
    missed = {name for name, one in stored.items() if not all(target.met for target in one.report.targets)}
    assert missed <= {benchmark.name for benchmark in BENCHMARKS if benchmark.unmet}, "say why the target is not met"
    pages = figures_page.pages_under([ROOT / "README.md", ROOT / "docs"])
    old = [one for one in pages if figures_page.refreshed(one, stored) != one.read_text(encoding="utf-8")]
    assert old == [], "run `make docs`"


def test_a_how_to_page_is_short_and_so_is_the_readme() -> None:
    pages = {*(ROOT / "docs" / "how-to").glob("*.md"), ROOT / "README.md"}
    lines = {page.name: len(page.read_text(encoding="utf-8").splitlines()) for page in pages}
    assert {name: count for name, count in lines.items() if count > (130 if name == "README.md" else 120)} == {}


def test_an_example_is_short_and_is_on_the_page_of_examples() -> None:
    """What plays a third party, or starts everything for a demonstration, is not an example to copy."""
    around = {"warehouse.py", "downstream.py", "__main__.py"}
    files = [path for kind in ("py", "go", "mjs", "sh", "sql") for path in (ROOT / "examples").rglob(f"*.{kind}")]
    copied = [path for path in files if path.name not in around and not path.name.startswith("test")]
    assert len(copied) > 15
    assert {path.name: lines for path in copied if (lines := len(path.read_text().splitlines())) > 80} == {}
    page = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    assert [
        one.name
        for one in (ROOT / "examples").iterdir()
        if one.is_dir() and one.name[0] not in "._" and one.name not in page
    ] == []


COMPOSE = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")


def test_every_setting_reaches_the_services() -> None:
    passed = set(re.findall(r"^    (TASKBRIDGE_[A-Z_]+):", COMPOSE, re.MULTILINE))
    assert passed == VARIABLES


def test_every_variable_of_the_compose_file_is_in_the_example_and_passwords_have_no_value() -> None:
    example = (ROOT / ".env.example").read_text(encoding="utf-8")
    named = set(re.findall(r"\$\{([A-Z_]+)", COMPOSE))
    assert {"POSTGRES_PASSWORD", "REDIS_PASSWORD", "FLOWER_PASSWORD"} < named
    assert named == set(re.findall(r"^(?:# )?([A-Z_]+)=", example, re.MULTILINE)) - {"TASKBRIDGE_PIPELINES"}
    assert set(re.findall(r"^([A-Z]+_PASSWORD=.*)$", example, re.MULTILINE)) == {
        f"{name}=" for name in named if name.endswith("_PASSWORD")
    }


def test_the_dashboard_of_grafana_asks_for_every_metric_and_for_no_other() -> None:
    dashboard = json.loads((ROOT / "examples" / "dashboard.json").read_text(encoding="utf-8"))
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    named = {name for query in asked for name in re.findall(r"\btaskbridge_\w+", query)}
    assert named <= SAMPLES
    assert [one.name for one in METRICS if not any(name.startswith(one.name) for name in named)] == []
    labels = {label for query in asked for label in re.findall(r"\bby \(([^)]*)\)", query)}
    assert labels <= {"pipeline", "server", "queue", "state", "le, pipeline", "pipeline, le"}
    # Each worker tells the figures of the whole deployment: added up, they would be counted once for each.
    of_all = {one.name for one in METRICS if one.group.scope == "deployment"}
    for query in asked:
        if any(re.search(rf"\b{name}(?:_bucket|_sum|_count)?\b", query) for name in of_all):
            assert "sum" not in query.replace("_sum", ""), query
