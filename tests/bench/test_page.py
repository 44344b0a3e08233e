"""The page of figures is what was measured and nothing else, and one failure costs no other figure."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from benchmarks import everything as command
from benchmarks import figures, page
from benchmarks.benchmark import Benchmark
from benchmarks.catalogue import BENCHMARKS
from benchmarks.figures import Figures
from benchmarks.profiles import PROFILES
from benchmarks.report import Headline, Plot, Report, Table, Target
from taskbridge.errors import InvalidInput

ROOT = Path(__file__).resolve().parents[2]
EXPLANATION = ROOT / "docs" / "explanation"
MEASURED = figures.read(EXPLANATION / figures.FILE)
EVERYTHING = {**MEASURED, **figures.read(EXPLANATION / PROFILES)}
PAGES = page.pages_under([ROOT / "README.md", ROOT / "docs"])
# What would tell where, or by whom, something was measured.
PRIVATE = re.compile(r"/(?:home|root|tmp|work|Users|usr|opt|var|mnt|srv)/|\bhostname\b", re.IGNORECASE)
# Tests that share the fixture `once` run in one process.
together = pytest.mark.xdist_group("page-once")

REPORT = Report(
    {"records": 3, "seconds": 0.5},
    [Table("A | B", ("", "ms", "unit"), [("one", 1.5, "x|y"), ("two", None, "z")], "A note.")],
    [Target("ratio", 2, 3)],
    [Plot("Curve", "x", "y", {"ours": [[1, 2], [2, 4]]})],
)


def figures_of(report: Report, **changes: object) -> Figures:
    made = Figures("A summary.", "A text.", "2026-01-31", {"CPU": "one"}, {"Redis": "7"}, report)
    return replace(made, **changes)  # type: ignore[arg-type]


def test_nobody_edits_the_page_of_figures_by_hand() -> None:
    assert MEASURED
    assert (EXPLANATION / command.PAGE).read_text(encoding="utf-8") == page.rendered(MEASURED), "run `make docs`"


@pytest.mark.parametrize("one", PAGES, ids=lambda one: one.relative_to(ROOT).as_posix())
def test_nobody_edits_a_block_of_figures_by_hand(one: Path) -> None:
    assert one.read_text(encoding="utf-8") == page.refreshed(one, EVERYTHING), "run `make docs`"


def test_every_benchmark_is_on_the_page_and_nothing_else() -> None:
    assert set(MEASURED) == {one.name for one in BENCHMARKS}, "run `make bench`"


@pytest.mark.parametrize("name", sorted(MEASURED))
def test_the_page_has_what_was_measured_with_options_that_exist(name: str) -> None:
    one, report = next(one for one in BENCHMARKS if one.name == name), MEASURED[name].report
    assert set(report.parameters) <= {option.name for option in one.options}
    text = (EXPLANATION / command.PAGE).read_text(encoding="utf-8")
    assert f"\n## {name}\n" in text
    assert [table.title for table in report.tables if f"**{table.title}**" not in text] == []
    assert [target.what for target in report.targets if f"- {target.what}: {target.text}\n" not in text] == []
    assert bool(report.plots) == (EXPLANATION / page.PLOTS / f"{name}.svg").exists()


def test_no_figure_tells_where_it_was_measured() -> None:
    written = [one for one in EXPLANATION.rglob("*") if one.is_file()]
    assert written
    assert [(one.name, found[0]) for one in written if (found := PRIVATE.search(one.read_text("utf-8")))] == []


@pytest.mark.parametrize("one", BENCHMARKS, ids=lambda one: one.name)
def test_the_options_of_the_page_are_within_their_limits(one: Benchmark) -> None:
    limits = {option.name: option for option in one.options}
    for name, value in one.page.items():
        assert limits[name].least <= value <= limits[name].most


def test_a_table_keeps_its_columns_whatever_its_cells_hold() -> None:
    text = page.rendered({"poison": figures_of(REPORT)})
    assert "| one | 1.5 | x\\|y |\n| two | - | z |\n\nA note.\n" in text
    assert "|  | ms | unit |\n| --- | ---: | --- |\n" in text
    assert "`python -m benchmarks poison --records 3 --seconds 0.5`" in text
    assert "- ratio: 2 (target at most 3: met)" in text


def test_figures_of_two_machines_are_told_apart() -> None:
    found = {"lateness": figures_of(REPORT), "poison": figures_of(REPORT, machine={"CPU": "two"})}
    text = page.rendered(found)
    assert "## Machine 1\n\n- CPU: one\n- Redis: 7\n" in text
    assert "Measured on 2026-01-31, on machine 2: `python -m benchmarks poison" in text


def test_a_headline_has_its_baseline_and_a_benchmark_without_one_shows_its_targets() -> None:
    telling = replace(REPORT, headlines=[Headline("calls", 42, "none bad", 20), Headline("ms", 3, "plain", 4, 0.5)])
    text = page.overview({"poison": figures_of(telling), "lateness": figures_of(REPORT)})
    assert "| `poison` | calls | 42 | none bad: 20 | 2.1 |\n| `poison` | ms | 3 | plain: 4 | 0.5 |\n" in text
    assert "| `lateness` | ratio | 2 | target at most 3: met | - |" in text


def test_a_block_gets_its_figures_and_the_rest_of_the_page_stays(tmp_path: Path) -> None:
    file = tmp_path / "page.md"
    marks = "<!-- figures: {} -->\nold\n<!-- end -->"
    file.write_text(f"a\n{marks.format('poison')}\nb\n{marks.format('poison 1')}\n{marks.format('other')}\nc\n")
    text = page.refreshed(file, {"poison": figures_of(REPORT)})
    assert text == (
        "a\n<!-- figures: poison -->\n- ratio: 2 (target at most 3: met)\n<!-- end -->\nb\n<!-- figures: poison 1 -->\n"
        "|  | ms | unit |\n| --- | ---: | --- |\n| one | 1.5 | x\\|y |\n| two | - | z |\n\nA note.\n<!-- end -->\n"
        "<!-- figures: other -->\nNot measured yet.\n<!-- end -->\nc\n"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<!-- figures: poison -->\nno end\n", "has no end"),
        ("<!-- figures: poison 2 -->\n<!-- end -->\n", "no table '2': give a number from 1 to 1"),
        ("<!-- figures: poison calls -->\n<!-- end -->\n", "no table 'calls'"),
    ],
)
def test_a_block_that_cannot_be_filled_is_an_error_that_names_its_page(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "page.md"
    file.write_text(text)
    with pytest.raises(InvalidInput, match=message) as caught:
        page.refreshed(file, {"poison": figures_of(REPORT)})
    assert str(file) in str(caught.value)


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The command, run for one benchmark that works, into a directory that has figures of another."""
    directory = tmp_path_factory.mktemp("figures") / "made"
    directory.mkdir()
    figures.write(directory / figures.FILE, {"poison": figures_of(REPORT)}, ["poison"])
    (directory / "other.md").write_text("<!-- figures: overview -->\n<!-- end -->\n")
    options = [str(directory), "--only", "notify", "--small", "--pages", str(directory / "other.md")]
    result = CliRunner().invoke(command.all_of_them, options, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return directory, result.stderr


@together
@pytest.mark.e2e
def test_one_benchmark_is_measured_again_and_the_rest_is_kept(once: tuple[Path, str]) -> None:
    directory, progress = once
    found = figures.read(directory / figures.FILE)
    assert list(found) == ["notify", "poison"]
    assert found["poison"] == figures.Figures.from_json(figures_of(REPORT).as_json())
    assert found["notify"].report.parameters == {"calls": 20, "many": 50, "rounds": 2}
    assert "notify (1 of 1)" in progress


@together
@pytest.mark.e2e
def test_the_files_say_the_machine_and_the_versions_and_not_where_it_was(once: tuple[Path, str]) -> None:
    directory, _ = once
    notify = json.loads((directory / figures.FILE).read_text())["notify"]
    assert set(notify["machine"]) == {"CPU", "cores", "memory", "kernel", "Python"}
    assert {"celery", "kombu", "psycopg", "PostgreSQL", "Redis"} <= set(notify["versions"])
    assert all(notify["machine"].values())
    assert all(notify["versions"].values())
    text = (directory / command.PAGE).read_text()
    assert "## notify" in text
    assert "| `notify` |" in (directory / "other.md").read_text()
    assert "<svg" in (directory / page.PLOTS / "poison.svg").read_text()
    assert [one for one in directory.rglob("*") if one.is_file() and PRIVATE.search(one.read_text())] == []


@pytest.mark.e2e
def test_a_benchmark_that_fails_is_named_and_loses_neither_the_others_nor_its_former_figures(tmp_path: Path) -> None:
    def fails() -> Report:
        raise TimeoutError("all records: not within 5 s")

    good = replace(BENCHMARKS[0], measure=lambda: REPORT, options=(), small={}, page={})
    bad = replace(BENCHMARKS[1], measure=fails, options=(), small={}, page={})
    former = figures_of(REPORT)
    figures.write(tmp_path / figures.FILE, {bad.name: former}, [bad.name])
    with pytest.raises(click.ClickException, match=f"not measured: {bad.name};") as caught:
        command.run(tmp_path, [bad, good])
    assert caught.value.exit_code == 1
    found = figures.read(tmp_path / figures.FILE)
    assert set(found) == {good.name, bad.name}
    assert found[bad.name].date == former.date
    assert found[good.name].date != former.date
    assert f"## {good.name}" in (tmp_path / command.PAGE).read_text()


def test_figures_that_cannot_be_read_are_not_written_over(tmp_path: Path) -> None:
    (tmp_path / figures.FILE).write_text('{"poison": 1}')
    result = CliRunner().invoke(command.all_of_them, [str(tmp_path), "--render"])
    assert result.exit_code == 1
    assert "move it away and measure again" in result.stderr
    assert (tmp_path / figures.FILE).read_text() == '{"poison": 1}'
