"""Options and argument types that several commands share."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import click

__all__ = [
    "DEFAULT_DATA_DIR",
    "data_dir_option",
    "duration",
    "examples",
    "json_option",
    "moment_or_duration",
    "pipeline_option",
]

DEFAULT_DATA_DIR: Final = Path(".taskbridge")

data_dir_option = click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=DEFAULT_DATA_DIR,
    envvar="TASKBRIDGE_DATA_DIR",
    expose_value=False,
    callback=lambda context, _, value: context.meta.update(data_dir=value),
    show_envvar=True,
    metavar="DIR",
    help="Data directory of the embedded servers.",
)
"""The option of each command that uses servers; `taskbridge.cli.environment` reads its value."""
json_option = click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")


def _default(_: click.Context, __: click.Parameter, name: str | None) -> str:
    """Return the named pipeline, else `invoices` if it is declared, else the only declared one."""
    if name is not None:
        return name
    from taskbridge.declaring.pipeline import DECLARED, INVOICES
    from taskbridge.settings import Settings

    modules = Settings.read().pipelines
    if not modules:
        return INVOICES
    DECLARED.load(modules)
    names = DECLARED.names()
    if not names or INVOICES in names:
        return INVOICES
    if len(names) > 1:
        raise click.UsageError(f"several pipelines are declared; choose one with --pipeline: {', '.join(names)}")
    return names[0]


pipeline_option = click.option(
    "--pipeline",
    callback=_default,
    metavar="NAME",
    help="The pipeline.  [default: invoices, or the only declared one]",
)


_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_LONGEST: Final = 36_500 * 86_400


def duration(value: str) -> timedelta:
    """Parse a duration such as 30d, from one second to a hundred years.

    Raises:
        click.BadParameter: it is not a duration.
    """
    match = re.fullmatch(r"([0-9]{1,10})([smhdw])", value)
    seconds = 0 if match is None else int(match[1]) * _SECONDS[match[2]]
    if not 0 < seconds <= _LONGEST:
        raise click.BadParameter(f"{value!r} is not a duration: use a number with s, m, h, d or w, such as 30d")
    return timedelta(seconds=seconds)


def moment_or_duration(value: str) -> datetime | timedelta:
    """Parse a time with a time zone, or a duration.

    Raises:
        click.BadParameter: it is neither.
    """
    try:
        at = datetime.fromisoformat(value)
    except ValueError:
        return duration(value)
    if at.tzinfo is None:
        raise click.BadParameter(f"{value!r} has no time zone: use, for example, 2026-01-31T08:00Z, or 2h")
    return at


def examples(*lines: str) -> str:
    """Return the epilog of a command's help, with examples."""
    return "\n".join(("\b", "Examples:" if len(lines) > 1 else "Example:", *(f"  {line}" for line in lines)))
