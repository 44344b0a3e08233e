"""The result of a soak: a line for each sample, tables, the picture, and what is wrong."""

from __future__ import annotations

import math
import platform
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import psutil

from verification.printing.printed import Printed
from verification.soak.fit import Point, Slope, cycle_means, fit
from verification.soak.samples import BY_DESIGN

__all__ = ["about", "line", "problems", "text", "write"]

Run = Mapping[str, Any]

WIDTH: Final = 760
PANEL_WIDTH: Final = 380
PANEL_HEIGHT: Final = 104
SVG: Final = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" \
font-family="system-ui, -apple-system, Segoe UI, Roboto, sans-serif">
<title>Latency, memory, connections, keys and tables during a soak</title>
<rect width="{width}" height="{height}" rx="10" fill="#f7f8fc"/>
{panels}</svg>
"""


class Quantity(NamedTuple):
    """Something that should be flat: the sum of some figures of a sample.

    `limit`: the growth per hour above which it is clearly not flat; the page explains each.
    """

    title: str
    unit: str
    limit: float
    figures: tuple[str, ...]
    is_drawn: bool = True

    def points(self, run: Run) -> list[Point]:
        """Return minutes and values; a process that is being restarted has none."""
        return [
            (sample["minute"], sum(sample[name] for name in self.figures))
            for sample in run["samples"]
            if all(name in sample for name in self.figures)
        ]

    def slope(self, run: Run) -> Slope | None:
        return fit(cycle_means(self.points(run), run["cycle_minutes"]))


FLAT: Final = (
    Quantity("first event, p50", "ms", 20, ("first p50",)),
    Quantity("first event, p99", "ms", 200, ("first p99",)),
    Quantity("row changed by SQL, p50", "ms", 20, ("sql p50",)),
    Quantity("row changed by SQL, p99", "ms", 200, ("sql p99",), is_drawn=False),
    Quantity("steady worker, main process: RSS", "MB", 4, ("steady main MB",)),
    Quantity("steady worker, two pool processes: RSS", "MB", 8, ("steady pool MB",)),
    Quantity("restarted workers: RSS", "MB", 8, ("blue main MB", "blue pool MB", "green main MB"), is_drawn=False),
    Quantity("receiver: RSS", "MB", 4, ("receiver main MB",)),
    Quantity("steady worker: open files", "", 1, ("steady fds", "steady pool fds"), is_drawn=False),
    Quantity("steady worker: threads", "", 1, ("steady threads",), is_drawn=False),
    Quantity("receiver: open files", "", 1, ("receiver fds",), is_drawn=False),
    Quantity("Postgres: sessions", "", 1, ("sessions",)),
    Quantity("Postgres: USS of all processes", "MB", 16, ("postgres MB",)),
    Quantity("Redis: clients", "", 1, ("redis clients",)),
    Quantity("Redis: keys", "", 10, ("redis keys",)),
    Quantity("Redis: used_memory", "MB", 1, ("redis MB",)),
    Quantity("records in the log", "", 200, ("records",)),
    Quantity("records pending", "", 5, ("pending",)),
    Quantity("tables that prune empties: heap", "MB", 1, ("heap MB",)),
    Quantity("tables that prune empties: indexes", "MB", 1, ("index MB",)),
    Quantity("tables that prune empties: dead rows", "", 1_000, ("dead",)),
    Quantity("Postgres: system catalogs", "MB", 1, ("catalog MB",), is_drawn=False),
)


def about() -> dict[str, Any]:
    """Return when and where a run begins."""
    git = ("git", "rev-parse", "--short", "HEAD")
    return {
        "began": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "commit": subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip(),
        "machine": f"{psutil.cpu_count()} cores, {psutil.virtual_memory().total / 2**30:.0f} GiB, {platform.system()} "
        f"{platform.machine()}, Python {platform.python_version()}",
    }


def line(sample: Mapping[str, Any]) -> str:
    """Return one sample in a line."""
    names = ("minute", "sent", "delivered", "doubled", "overdue", "pending", "quarantined", "cpu", "first p50")
    return ", ".join(f"{name} {sample.get(name, math.nan):.4g}" for name in names)


def problems(run: Run) -> list[str]:
    """Return what is wrong."""
    last = run["samples"][-1]
    found = [f"lost: {pipeline} {key} of {tenant}" for pipeline, tenant, key in run.get("missing", ())]
    if last["doubled"]:
        found.append(f"delivered twice: {last['doubled']} revisions")
    if last["taken"] != last["goods"]:
        found.append(f"{last['goods']} rows were delivered, but {last['taken']} took effect through batch.connection")
    if any(sample["overdue"] for sample in run["samples"]):
        found.append("a record waited for more than 15 minutes")
    for quantity in FLAT:
        slope = quantity.slope(run)
        if slope is not None and slope.low > quantity.limit:
            found.append(f"{quantity.title}: grows by {slope.per_hour:,.4g} {quantity.unit} per hour")
    return found


def text(run: Run) -> str:
    """Return everything for a terminal."""
    return "\n\n".join([_summary(run), _flat(run), _by_design(run)])


def write(run: Run, docs: Path) -> None:
    """Write the picture, and the parts of the page that come from a run."""
    (docs / "pictures" / "soak.svg").write_text(_picture(run), encoding="utf-8")
    page = docs / "explanation" / "soak.md"
    for name, part in (("summary", _summary), ("flat", _flat), ("by design", _by_design)):
        Printed(page, name).write(part(run))


def _summary(run: Run) -> str:
    last = run["samples"][-1]
    cpu = [sample["cpu"] for sample in run["samples"][1:]] or [0]
    lost = len(run["missing"]) if "missing" in run else "not known how many"
    answers = ", ".join(f"{count:,} with {status}" for status, count in sorted(run["answers"].items()))
    wrong = "; ".join(problems(run))
    judged = any(quantity.slope(run) for quantity in FLAT)
    fine = "Nothing grows that should be flat" if judged else "The run was too short to tell whether anything grows"
    return f"""\
This run took {last["minute"]:.0f} minutes, from {run["began"]}, at commit `{run["commit"]}` ({run["machine"]}).

- {last["sent"]:,} changes, {last["delivered"]:,} revisions delivered. Lost: {lost}. Delivered twice: {last["doubled"]}.
- {last["repeated"]} deliveries were repeated in the two pipelines with failing records. This is expected (see below).
- The downstream answered {answers}.
- Restarts of workers: {run["restarts"]}.
- All processes together used {sum(cpu) / len(cpu):.0%} of one core.
- {f"**Wrong:** {wrong}" if wrong else fine}."""


def _flat(run: Run) -> str:
    rows = [
        "| what should be flat | mean | growth per hour | 95% interval | limit |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for quantity in FLAT:
        points = quantity.points(run)
        half = [value for minute, value in points if minute >= points[-1][0] / 2]
        mean = f"{sum(half) / len(half):,.4g} {quantity.unit}".strip() if half else ""
        slope = quantity.slope(run)
        growth = "run too short |" if slope is None else "{:+,.2f} | {:+,.2f} to {:+,.2f}".format(*slope)
        rows.append(f"| {quantity.title} | {mean} | {growth} | {quantity.limit:,g} |")
    return "\n".join(rows)


def _by_design(run: Run) -> str:
    rows = ["| what grows by design | rows per hour | kB per hour |", "| --- | ---: | ---: |"]
    first, last = run["samples"][0], run["samples"][-1]
    hours = (last["minute"] - first["minute"]) / 60 or 1
    for name in BY_DESIGN:
        grown = [after - before for before, after in zip(first["tables"][name], last["tables"][name], strict=True)]
        rows.append(f"| `{name}` | {grown[0] / hours:,.0f} | {sum(grown[2:]) / 1000 / hours:,.0f} |")
    return "\n".join(rows)


def _picture(run: Run) -> str:
    """Return a picture with a panel for each quantity that is drawn, all axes from zero."""
    drawn = [quantity for quantity in FLAT if quantity.is_drawn and quantity.points(run)]
    height = 14 + PANEL_HEIGHT * math.ceil(len(drawn) / 2)
    parts = []
    for number, quantity in enumerate(drawn):
        x, y = PANEL_WIDTH * (number % 2), 14 + PANEL_HEIGHT * (number // 2)
        panel = _panel(quantity, quantity.points(run), run["cycle_minutes"])
        parts.append(f'<g transform="translate({x} {y})">\n{panel}</g>\n')
    return SVG.format(width=WIDTH, height=height, panels="".join(parts))


def _panel(quantity: Quantity, points: Sequence[Point], cycle_minutes: float) -> str:
    left, right, top, bottom = 20, PANEL_WIDTH - 20, 28, 78
    most, last = max(value for _, value in points) or 1, points[-1][0] or 1

    def path(shown: Sequence[Point]) -> str:
        places = [
            f"{left + minute / last * (right - left):.1f} {bottom - value / most * (bottom - top):.1f}"
            for minute, value in shown
        ]
        return f"M{' L'.join(places)}" if places else ""

    return f"""\
<text x="{left}" y="14" font-size="12" fill="#1f2430">{quantity.title}</text>
<text x="{right}" y="14" font-size="11" fill="#5b6475" text-anchor="end">{most:,.4g} {quantity.unit}</text>
<path d="M{left} {bottom} H{right} M{left} {top} H{right}" stroke="#d9dce6" fill="none"/>
<path d="{path(points)}" stroke="#9db3ee" fill="none"/>
<path d="{path(cycle_means(points, cycle_minutes))}" stroke="#3f6ad8" stroke-width="2" fill="none"/>
<text x="{right}" y="92" font-size="10" fill="#5b6475" text-anchor="end">{last:.0f} min</text>
"""
