"""`taskbridge env`: print the settings in use, for producers and `celery` in another shell."""

from __future__ import annotations

import shlex

import click

from taskbridge.cli import environment
from taskbridge.cli.options import data_dir_option, examples
from taskbridge.settings import Settings

__all__ = ["env"]


@click.command(epilog=examples('eval "$(taskbridge env)"'))
@data_dir_option
def env() -> None:
    """Print the settings in use as shell commands. They include passwords.

    Without servers, nothing is printed, and the variables of the shell stay as they are.
    """
    environment.existing()
    values = Settings.read().as_environment()
    lines = [f"{name}={shlex.quote(value)}" for name, value in values.items()]
    click.echo("\n".join((*lines, f"export {' '.join(values)}")))
