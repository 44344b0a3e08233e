"""`taskbridge env`: the URLs in use, for producers and `celery` in another shell."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from taskbridge.cli import surroundings
from taskbridge.cli.options import data_dir_option, examples
from taskbridge.settings import Settings

__all__ = ["env"]


@click.command(
    short_help="Print the URLs in use, for other shells.",
    epilog=examples("export $(taskbridge env)", 'set -a; eval "$(taskbridge env)"; set +a'),
)
@data_dir_option
def env(data_dir: Path) -> None:
    """Print the URLs in use as KEY=value lines, passwords included.

    The first way below works with the servers of `taskbridge up`; the second one also where your own URLs hold
    characters that a shell would take for its own.
    """
    surroundings.existing(data_dir)
    settings = Settings.read()
    click.echo(f"{surroundings.POSTGRES}={shlex.quote(settings.postgres_url)}")
    click.echo(f"{surroundings.REDIS}={shlex.quote(settings.redis_url)}")
    click.echo(f"TASKBRIDGE_BROKER_URL={shlex.quote(settings.broker)}")
