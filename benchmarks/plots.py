"""Plots of a report as SVG. Drawn by matplotlib."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from benchmarks.report import Plot
from taskbridge.errors import ConfigurationError, InvalidInput

__all__ = ["check_matplotlib", "draw"]


def check_matplotlib() -> None:
    """Raise ConfigurationError, with the remedy, where matplotlib is not installed."""
    if find_spec("matplotlib") is None:
        raise ConfigurationError("matplotlib draws the plots: run `make .venv/.ready`")


def draw(plots: Sequence[Plot], file: Path) -> None:
    """Draw `plots` beside each other into `file`, the same bytes for the same points.

    Raises:
        InvalidInput: there is nothing to draw, or the file cannot be written.
        ConfigurationError: matplotlib is not installed.
    """
    if not plots:
        raise InvalidInput("this benchmark has no curve to draw: leave --plot out")
    check_matplotlib()
    import matplotlib.backends.backend_svg as svg  # noqa: PLC0415 - an extra
    from matplotlib import figure, rc_context  # noqa: PLC0415

    # Text stays text, so that it can be searched and the file is small.
    with rc_context({"svg.hashsalt": "taskbridge", "svg.fonttype": "none"}):
        page = figure.Figure(figsize=(5.4 * len(plots), 3.8), layout="constrained")
        svg.FigureCanvasSVG(page)
        for place, plot in zip(page.subplots(1, len(plots), squeeze=False)[0], plots, strict=True):
            for name, points in plot.series.items():
                place.plot(*zip(*points, strict=True), marker="o", markersize=3, label=name)
            place.set(title=plot.title, xlabel=plot.x, ylabel=plot.y)
            if plot.logarithmic:
                place.set(xscale="log", yscale="log")
            else:
                place.set_ylim(bottom=0)
            place.grid(alpha=0.3)
            place.legend(fontsize="small")
        try:
            page.savefig(file, format="svg", metadata={"Date": None})
        except OSError as error:
            raise InvalidInput(f"{os.fspath(file)} cannot be written: {error.strerror}") from None
