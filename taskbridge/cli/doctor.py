"""`taskbridge doctor`: what is wrong with a deployment, and what to do about it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from taskbridge.cli import console, environment
from taskbridge.cli.options import data_dir_option, examples, json_option

if TYPE_CHECKING:
    from taskbridge.integration.checks import Finding

__all__ = ["doctor"]

_STYLES: Final = {"ok": "green", "warning": "yellow", "problem": "bold red"}


@click.command(epilog=examples("taskbridge doctor"))
@data_dir_option
@click.option("--strict", is_flag=True, help="End with status 1 for a warning as well.")
@json_option
def doctor(data_dir: Path, strict: bool, as_json: bool) -> None:
    """Check the servers, the schema, the broker, the workers and the pipelines, with a remedy for each finding.

    A problem ends the command with status 1, and so does a warning with --strict.
    """
    from taskbridge.integration.checks import Level, examine, worst

    environment.existing(data_dir)
    findings = examine(environment.runtime())
    if as_json:
        rows = [
            {"level": one.level, "check": one.check, "text": one.text, "remedy": console.spoken(one.remedy)}
            for one in findings
        ]
        console.emit_json({"level": worst(findings), "findings": rows})
    else:
        _show(findings)
    if worst(findings) is Level.PROBLEM or (strict and worst(findings) is not Level.OK):
        raise click.exceptions.Exit(1)


def _show(findings: list[Finding]) -> None:
    terminal = console.stdout()
    for one in findings:
        line = console.cell(f"{one.level:<8}", _STYLES[one.level])
        line.append_text(console.cell(f" {one.check}: {one.text}", "default"))
        terminal.print(line)
        if one.remedy:
            terminal.print(console.cell(f"         -> {console.spoken(one.remedy)}"))
