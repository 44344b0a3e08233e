"""`taskbridge metrics`: figures of the deployment in Prometheus's text format."""

from __future__ import annotations

from pathlib import Path

import click

from taskbridge.cli import console, environment
from taskbridge.cli.options import data_dir_option, examples

__all__ = ["metrics"]


@click.command(
    epilog=examples(
        "taskbridge metrics", "taskbridge metrics > taskbridge.prom.new && mv taskbridge.prom.new taskbridge.prom"
    ),
)
@data_dir_option
def metrics(data_dir: Path) -> None:
    """Print the deployment's metrics once, in Prometheus's text format.

    They are those that a worker serves on TASKBRIDGE_METRICS_PORT, without what it counts of its own ticker.

    Exit status: 0; 1 where Postgres or Redis does not answer. Then the metrics that need it are left out, and
    taskbridge_up says which one it is.
    """
    from taskbridge.observing.metrics import Metrics

    environment.existing(data_dir)
    look = Metrics(environment.light_runtime())
    click.echo(look.text(), nl=False)
    for problem in look.problems:
        console.complain(problem)
    if look.problems:
        raise click.exceptions.Exit(1)
