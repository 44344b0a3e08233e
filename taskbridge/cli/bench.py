"""`taskbridge bench NAME`: benchmarks, on embedded servers of their own."""

from __future__ import annotations

import click

from taskbridge.bench import lateness as lateness_bench
from taskbridge.cli import screen
from taskbridge.cli.options import examples, json_option

__all__ = ["bench"]


@click.group(short_help="Measure.", epilog=examples("taskbridge bench lateness", "taskbridge bench lateness --json"))
def bench() -> None:
    """Measure on this machine, on embedded servers that live as long as the measurement."""


@bench.command(short_help="How late due runs are published.", epilog=examples("taskbridge bench lateness"))
@click.option(
    "--tenants", type=click.IntRange(2, 100_000), default=10_000, show_default=True, help="Tenants that wait."
)
@click.option(
    "--seconds",
    type=click.FloatRange(1, 600),
    default=20.0,
    show_default=True,
    help="Span over which they come due, evenly.",
)
@json_option
def lateness(tenants: int, seconds: float, as_json: bool) -> None:
    """Measure how late runs are published that waited for their delay, and what waiting costs Redis.

    The target is a 99th percentile below 100 ms. The baseline for the cost is the same worker with nobody waiting.
    """
    if not as_json:
        screen.tell(f"{tenants:,} tenants, due over {seconds:g} s; this takes about {seconds + 15:.0f} s")
    figures = lateness_bench.measure(tenants, seconds)
    if as_json:
        screen.emit_json(figures)
        return
    console = screen.stdout()
    late, commands = figures["lateness_ms"], figures["redis_commands_per_second"]
    console.print(f"lateness: median {late['median']:.1f} ms, p99 {late['p99']:.1f} ms, longest {late['max']:.1f} ms")
    rates = [f"{rate:.0f} a second while {who}" for who, rate in commands.items() if who != "ratio"]
    console.print(f"Redis commands: {', '.join(rates)} (ratio {commands['ratio']:.2f})", soft_wrap=True)
