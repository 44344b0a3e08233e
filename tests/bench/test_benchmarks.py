"""Every benchmark runs, and the pages show the stored figures."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from benchmarks import figures, page
from benchmarks.everything import BENCHMARKS, PAGE
from benchmarks.report import Benchmark, Report

ROOT: Final = Path(__file__).resolve().parents[2]
DIRECTORY: Final = ROOT / "docs" / "explanation"


@pytest.mark.slow
@pytest.mark.parametrize("benchmark", BENCHMARKS, ids=lambda benchmark: benchmark.name)
def test_a_benchmark_runs_with_small_options(benchmark: Benchmark) -> None:
    written = benchmark.measure(**benchmark.parameters(small=True)).as_json()
    report = Report.from_json(written)
    assert report.targets
    assert all(report.tables)
    assert report.as_json() == written


def test_the_page_shows_the_stored_figures() -> None:
    stored = figures.read(DIRECTORY / figures.FILE)
    assert list(stored) == [benchmark.name for benchmark in BENCHMARKS]
    assert (DIRECTORY / PAGE).read_text(encoding="utf-8") == page.rendered(BENCHMARKS, stored), "run `make docs`"


def test_the_blocks_of_figures_show_the_stored_figures() -> None:
    stored = figures.read(DIRECTORY / figures.FILE)
    pages = page.pages_under([ROOT / "README.md", ROOT / "docs"])
    old = [one for one in pages if page.refreshed(one, stored) != one.read_text(encoding="utf-8")]
    assert old == [], "run `make docs`"
