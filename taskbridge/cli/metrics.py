"""`taskbridge metrics`: print the deployment's metrics in Prometheus's text format."""

from __future__ import annotations

from pathlib import Path

import click

from taskbridge.cli import console, environment
from taskbridge.cli.options import data_dir_option, examples

__all__ = ["metrics"]


@click.command(short_help="Print Prometheus metrics.", epilog=examples("taskbridge metrics"))
@data_dir_option
def metrics(data_dir: Path) -> None:
    """Print the metrics of the deployment in Prometheus's text format.

    If Postgres or Redis does not answer, its metrics are missing and the exit status is 1.
    """
    from taskbridge.observe.metrics import Metrics

    collected = Metrics(environment.runtime_without_app(data_dir))
    click.echo(collected.text(), nl=False)
    for problem in collected.problems:
        console.complain(problem)
    if collected.problems:
        raise click.exceptions.Exit(1)
