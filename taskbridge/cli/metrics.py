"""`taskbridge metrics`: print the deployment's metrics in Prometheus's text format."""

from __future__ import annotations

import click

from taskbridge.cli import console, environment
from taskbridge.cli.options import data_dir_option, examples

__all__ = ["metrics"]


@click.command(epilog=examples("taskbridge metrics"))
@data_dir_option
def metrics() -> None:
    """Print the metrics of the deployment for Prometheus.

    If Postgres or Redis does not answer, its metrics are missing and the exit status is 1.
    """
    from taskbridge.observe.metrics import Metrics

    collected = Metrics(environment.runtime_without_app())
    click.echo(collected.text(), nl=False)
    for problem in collected.problems:
        console.complain(problem)
    if collected.problems:
        raise click.exceptions.Exit(1)
