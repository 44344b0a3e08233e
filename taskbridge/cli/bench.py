"""`taskbridge bench NAME`: benchmarks, on embedded servers of their own."""

from __future__ import annotations

import click

from taskbridge.bench import lateness as lateness_bench
from taskbridge.bench import neighbours as neighbours_bench
from taskbridge.bench import poison as poison_bench
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


@bench.command(short_help="First events beside a very large tenant.", epilog=examples("taskbridge bench neighbours"))
@click.option("--records", type=click.IntRange(1_000), default=1_000_000, show_default=True, help="Of the large one.")
@click.option("--tenants", type=click.IntRange(2, 10_000), default=100, show_default=True, help="With one event each.")
@click.option("--concurrency", type=click.IntRange(1, 64), default=1, show_default=True, help="Runs at a time.")
@json_option
def neighbours(records: int, tenants: int, concurrency: int, as_json: bool) -> None:
    """Measure how long first events wait while another tenant has very many pending records and a slow handler.

    The target is a 99th percentile within twice that of an idle worker plus one run budget, measured in the same run.
    """
    if not as_json:
        screen.tell(f"{tenants:,} first events on an idle worker, then beside {records:,} records of one tenant")
    figures = neighbours_bench.measure(records, tenants, concurrency)
    if as_json:
        screen.emit_json(figures)
        return
    console = screen.stdout()
    for name, late in figures["first_event_ms"].items():
        text = f"{name}: median {late['median']:.0f} ms, p99 {late['p99']:.0f} ms, longest {late['max']:.0f} ms"
        console.print(text)
    rate, within = figures["large_records_per_second"], figures["within"]
    console.print(f"the large tenant meanwhile: {rate:,.0f} records a second; target for the busy p99: {within:.0f} ms")


@bench.command(short_help="What finding one bad record costs.", epilog=examples("taskbridge bench poison"))
@click.option("--records", type=click.IntRange(2), default=10_000, show_default=True, help="Of each tenant.")
@click.option("--bad", type=click.IntRange(1), default=5_000, show_default=True, help="Place of the bad record.")
@json_option
def poison(records: int, bad: int, as_json: bool) -> None:
    """Measure what it costs to find one record that fails always among others of its tenant.

    The baseline is a tenant with as many records of which none is bad.
    """
    if bad > records:
        raise click.BadParameter(f"there are {records:,} records, so none is at place {bad:,}", param_hint="--bad")
    figures = poison_bench.measure(records, bad)
    if as_json:
        screen.emit_json(figures)
        return
    console, calls, seconds = screen.stdout(), figures["calls"], figures["seconds"]
    console.print(f"{figures['handled']:,} handled, {figures['quarantined']:,} in quarantine")
    console.print(f"calls of the handler: {calls['poisoned']:,}, without a bad record {calls['clean']:,}")
    console.print(f"seconds: {seconds['poisoned']:.1f}, without a bad record {seconds['clean']:.1f}")
