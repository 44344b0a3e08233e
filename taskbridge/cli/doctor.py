"""`taskbridge doctor`: find problems of a deployment, with remedies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from taskbridge.cli import console, environment
from taskbridge.cli.options import data_dir_option, examples, json_option
from taskbridge.common.texts import spoken
from taskbridge.errors import ConfigurationError

if TYPE_CHECKING:
    from celery import Celery

__all__ = ["doctor"]


@click.command(epilog=examples("taskbridge doctor", "taskbridge doctor -A shop"))
@click.option("-A", "--app", "module", metavar="MODULE", help="The module of your Celery app, as in `celery -A`.")
@data_dir_option
@click.option("--strict", is_flag=True, help="Exit with status 1 for warnings, too.")
@json_option
def doctor(module: str | None, strict: bool, as_json: bool) -> None:
    """Find problems and suggest remedies. Check the servers, schema, broker, workers and pipelines.

    The exit status is 1 if there is a problem, or with --strict if there is a warning.
    """
    from taskbridge.integration.checks import Level, examine, worst

    environment.existing()
    findings = examine(environment.runtime(None if module is None else _app(module)))
    level = worst(findings)
    keys = ("level", "check", "text", "remedy")
    rows = [{key: getattr(one, key) for key in keys} | {"remedy": spoken(one.remedy)} for one in findings]
    if as_json:
        console.emit_json({"level": level, "findings": rows})
    else:
        for row in rows:
            console.show(f"{row['level']:<8} {row['check']}: {row['text']}")
            console.show(*([f"         -> {row['remedy']}"] if row["remedy"] else ()))
    if level is Level.PROBLEM or (strict and level is not Level.OK):
        raise click.exceptions.Exit(1)


def _app(module: str) -> Celery:
    from celery.app.utils import find_app

    from taskbridge.integration.installation import is_installed

    try:
        found: Celery = find_app(module)
    except (ImportError, AttributeError) as error:
        what = f"there is no Celery app {module!r} ({error})"
        raise ConfigurationError(what, "name its module, as in `celery -A`") from error
    if not is_installed(found):
        raise ConfigurationError(f"TaskBridge is not installed on the app {module!r}", "call `taskbridge.install(app)`")
    return found
