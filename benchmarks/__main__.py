"""`python -m benchmarks NAME` runs a benchmark on embedded servers of its own."""

from __future__ import annotations

from typing import Any

import click
from rich.console import Console

from benchmarks.everything import BENCHMARKS, all_of_them
from benchmarks.report import Benchmark, Option, Report, column
from taskbridge.cli import console, interrupts
from taskbridge.cli.errors import Group
from taskbridge.cli.options import examples, json_option

__all__ = ["main"]


@click.group(cls=Group, epilog=examples("python -m benchmarks first-event", "python -m benchmarks drain --json"))
def main() -> None:
    """Measure on this machine, on embedded servers that live as long as the measurement.

    Each benchmark measures its baselines in the same run, alternating with what they are compared with.
    """


def _command(benchmark: Benchmark) -> click.Command:
    """Return the command of one benchmark: its options and --json."""

    def callback(as_json: bool, **options: float) -> None:
        report = benchmark.measure(**options)
        if as_json:
            console.emit_json({"benchmark": benchmark.name, **report.as_json()})
        else:
            _print(console.terminal(), report)

    return click.command(
        benchmark.name,
        short_help=benchmark.promise,
        help=benchmark.text,
        epilog=examples(f"python -m benchmarks {benchmark.name}"),
        params=[_option(option) for option in benchmark.options],
    )(json_option(callback))


def _option(option: Option) -> click.Option:
    kind: Any = click.FloatRange if type(option.default) is float else click.IntRange
    return click.Option(
        [f"--{option.name.replace('_', '-')}"],
        type=kind(option.least, option.most),
        default=option.default,
        show_default=True,
        help=option.help,
    )


def _print(terminal: Console, report: Report) -> None:
    for one in report.tables:
        console.show(*([one.title] if one.title else []))
        columns = {heading: column(at) for at, heading in enumerate(one.columns)}
        console.show_rows(one.rows, **columns)
        if one.note:
            terminal.print(one.note, soft_wrap=True)
    for target in report.targets:
        terminal.print(f"{target.what}: {target.text}", soft_wrap=True)


for benchmark in BENCHMARKS:
    main.add_command(_command(benchmark))
main.add_command(all_of_them)

if __name__ == "__main__":
    interrupts.install()
    main(prog_name="python -m benchmarks")
