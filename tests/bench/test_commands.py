"""Every benchmark runs, on real servers and workers, with parameters so small that its figures mean nothing."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from benchmarks.__main__ import main
from benchmarks.benchmark import Benchmark
from benchmarks.catalogue import BENCHMARKS
from benchmarks.report import Report, shown

each = pytest.mark.parametrize("benchmark", BENCHMARKS, ids=lambda benchmark: benchmark.name)
QUICK = ("notify",)
"""What `make test` runs as well; the others start workers and take long."""


@pytest.mark.e2e
@pytest.mark.parametrize(
    "benchmark",
    [pytest.param(one, id=one.name, marks=() if one.name in QUICK else pytest.mark.slow) for one in BENCHMARKS],
)
def test_it_reports_figures_as_json(benchmark: Benchmark) -> None:
    options = [part for name, value in benchmark.small.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    result = CliRunner().invoke(main, [benchmark.name, "--json", *options], catch_exceptions=False)
    assert result.exit_code == 0, result.stderr
    (line,) = result.stdout.splitlines()
    found = json.loads(line)
    assert found.pop("benchmark") == benchmark.name
    report = Report.from_json(found)
    assert report.as_json() == found
    assert dict(report.parameters) == dict(benchmark.small)
    for table in report.tables:
        assert table.rows
        for row in table.rows:
            assert len(row) == len(table.columns)
            assert any(isinstance(value, int | float) and value != 0 for value in row)
    for plot in report.plots:
        assert all(len(points) > 1 for points in plot.series.values())


@each
def test_its_small_parameters_are_all_that_it_takes_and_within_their_limits(benchmark: Benchmark) -> None:
    limits = {option.name: option for option in benchmark.options}
    assert set(benchmark.small) == set(limits)
    for name, value in benchmark.small.items():
        assert limits[name].least <= value <= limits[name].most


def test_numbers_have_three_significant_digits_and_whole_ones_thousands_commas() -> None:
    assert [shown(value) for value in (0.12345, 1.5, 12.345, 3, 1234.5, 0.0, None, "x")] == [
        "0.123",
        "1.5",
        "12.3",
        "3",
        "1,234",
        "0",
        "-",
        "x",
    ]
