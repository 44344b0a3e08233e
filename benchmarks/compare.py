"""`python -m benchmarks.compare COMMIT NAME`: run a benchmark on another commit and on this tree, in turn.

A machine that others use is faster in one minute and slower in the next. Both sides measure the same baseline in each
round, and they take turns, so only the ratio of their ratios is reported. The other commit runs with the packages
that are installed here.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click

from benchmarks.report import Report, column, shown
from taskbridge.cli import console

__all__ = ["main"]

ROOT: Final = Path(__file__).resolve().parent.parent


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("commit")
@click.argument("name")
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
@click.option("--rounds", type=click.IntRange(1, 50), default=3, show_default=True, help="Runs of each side.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
def main(commit: str, name: str, options: tuple[str, ...], rounds: int, as_json: bool) -> None:
    """Run benchmark NAME on COMMIT and on this tree in turn; OPTIONS go to the benchmark.

    It compares the figures that have a target. Whether more is better depends on the figure: it is for records per
    second, but not for milliseconds.
    """
    found: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    with _checked_out(commit) as other:
        for round_number in range(rounds):
            # The side that goes first changes, in case the machine warms up.
            trees = [other, ROOT] if round_number % 2 == 0 else [ROOT, other]
            figures = {tree: _measured(tree, name, options) for tree in trees}
            for what in figures[ROOT].keys() & figures[other].keys():
                found[what].append((figures[other][what], figures[ROOT][what]))
    rows = [_row(what, found[what]) for what in sorted(found)]
    if as_json:
        console.emit_json({"benchmark": name, "commit": commit, "rounds": rounds, "figures": rows})
        return
    columns = {"what": "what", commit[:12]: "there", "here": "here", "here / there": "change"}
    shown_rows: dict[str, Any] = {heading: column(key) for heading, key in columns.items()}
    console.show(f"{name}, {rounds} rounds of each side")
    shown_rows["of each round"] = lambda row: ", ".join(map(shown, row["rounds"]))
    console.show_rows(rows, **shown_rows)


@contextmanager
def _checked_out(commit: str) -> Iterator[Path]:
    """Check a commit out into a directory of its own for as long as the block lasts."""
    git = ["git", "-C", str(ROOT)]
    with tempfile.TemporaryDirectory(prefix="taskbridge-compare-") as directory:
        tree = Path(directory) / "tree"
        subprocess.run([*git, "worktree", "add", "--quiet", "--detach", str(tree), commit], check=True)
        try:
            yield tree
        finally:
            subprocess.run([*git, "worktree", "remove", "--force", str(tree)], check=True)


def _measured(tree: Path, name: str, options: tuple[str, ...]) -> dict[str, float]:
    """Run a benchmark with the code of `tree`; return its figures that have a target.

    Raises:
        CalledProcessError: it failed; what it wrote on stderr has been shown.
    """
    command = [sys.executable, "-m", "benchmarks", name, *options, "--json"]
    # Before the tree that the environment has installed, also for the workers that the benchmark starts.
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    printed = subprocess.run(command, check=True, cwd=tree, env=environment, stdout=subprocess.PIPE).stdout
    report = Report.from_json(json.loads(printed))
    return {target.what: target.value for target in report.targets}


def _row(what: str, pairs: list[tuple[float, float]]) -> dict[str, Any]:
    before, after = ([*side] for side in zip(*pairs, strict=True))
    changes = [now / then if then else 0.0 for then, now in pairs]
    medians = {"there": before, "here": after, "change": changes}
    return {"what": what, **{name: statistics.median(values) for name, values in medians.items()}, "rounds": changes}


if __name__ == "__main__":
    main()
