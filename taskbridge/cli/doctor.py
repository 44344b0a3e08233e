"""`taskbridge doctor`: find problems of a deployment, with remedies."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from taskbridge.cli import console, environment
from taskbridge.cli.options import data_dir_option, examples, json_option
from taskbridge.common.texts import spoken
from taskbridge.errors import ConfigurationError, TaskBridgeError

if TYPE_CHECKING:
    from celery import Celery

__all__ = ["doctor"]

_STYLES: Final = {"ok": "green", "warning": "yellow", "problem": "bold red"}


@click.command(
    short_help="Find problems and suggest remedies.", epilog=examples("taskbridge doctor", "taskbridge doctor -A shop")
)
@click.option("-A", "--app", "module", metavar="MODULE", help="The module of your Celery app, as in `celery -A`.")
@data_dir_option
@click.option("--strict", is_flag=True, help="Exit with status 1 for warnings, too.")
@json_option
def doctor(module: str | None, data_dir: Path, strict: bool, as_json: bool) -> None:
    """Check the servers, schema, broker, workers and pipelines, and suggest a remedy for each finding.

    The exit status is 1 if there is a problem, or with --strict if there is a warning.
    """
    from taskbridge.integration.checks import Level, examine, worst

    environment.existing(data_dir)
    findings = examine(environment.runtime(None if module is None else _app(module)))
    level = worst(findings)
    if as_json:
        rows = [
            {"level": one.level, "check": one.check, "text": one.text, "remedy": spoken(one.remedy)} for one in findings
        ]
        console.emit_json({"level": level, "findings": rows})
    else:
        terminal = console.stdout()
        for one in findings:
            line = console.cell(f"{one.level:<8}", _STYLES[one.level])
            line.append_text(console.cell(f" {one.check}: {one.text}", "default"))
            terminal.print(line)
            if one.remedy:
                terminal.print(console.cell(f"         -> {spoken(one.remedy)}"))
    if level is Level.PROBLEM or (strict and level is not Level.OK):
        raise click.exceptions.Exit(1)


def _app(module: str) -> Celery:
    from celery.app.utils import find_app

    from taskbridge.integration.installation import is_installed

    try:
        found: Celery = find_app(module)
    except TaskBridgeError:
        raise
    except Exception as error:
        raise ConfigurationError(
            f"there is no Celery app {module!r} ({type(error).__name__}: {error})", "name its module, as in `celery -A`"
        ) from error
    if not is_installed(found):
        raise ConfigurationError(f"TaskBridge is not installed on the app {module!r}", "call `taskbridge.install(app)`")
    return found
