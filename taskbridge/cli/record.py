"""`taskbridge record`: record messages from a file or a pipe, for a pipeline with criteria."""

from __future__ import annotations

import json
import shlex
import uuid
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Final, NoReturn

import click

from taskbridge.cli import console, environment
from taskbridge.cli.interrupts import Interrupted, uninterrupted
from taskbridge.cli.options import data_dir_option, examples, json_option
from taskbridge.common.texts import spoken
from taskbridge.errors import InvalidInput, TaskBridgeError

__all__ = ["record"]

COUNTS: Final = ("lines", "new", "known_before", "matched", "unmatched", "problems")
LISTED_PROBLEMS: Final = 10_000
"""Standard input may never end, so further problems are only counted."""


@dataclass(slots=True)
class _Recording:
    """The progress of a file. `matched`, `unmatched` and `tenants` are about new messages."""

    pipeline: str
    id_field: str | None
    counts: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(COUNTS, 0)))
    tenants: set[str] = field(default_factory=set)
    problem_lines: list[dict[str, Any]] = field(default_factory=list)

    def take(self, number: int, raw: bytes, name: str) -> None:
        """Record a line, or report what is wrong with it.

        Raises:
            Unavailable: Postgres or Redis is unavailable.
        """
        try:
            self._record(_parsed(raw))
        except InvalidInput as error:
            console.tell(f"{name}:{number}: {error}")
            self.counts["problems"] += 1
            if len(self.problem_lines) < LISTED_PROBLEMS:
                self.problem_lines.append({"line": number, "text": str(error)})
        self.counts["lines"] += 1

    def _record(self, payload: Any) -> None:
        from taskbridge.integration.app import record_event

        recorded = record_event(self.pipeline, payload, message_id=self._message_id(payload))
        if not recorded.new:
            self.counts["known_before"] += 1
        elif recorded.tenant is None:
            self.counts.update(("new", "unmatched"))
        else:
            self.counts.update(("new", "matched"))
            self.tenants.add(recorded.tenant)

    def _message_id(self, payload: Any) -> str:
        if self.id_field is None:
            return str(uuid.uuid4())
        found = payload.get(self.id_field) if isinstance(payload, dict) else None
        if not isinstance(found, str):
            raise InvalidInput(f"the field {self.id_field!r}, which should hold the message id, is not a string")
        return found

    def show(self, *, complete: bool, as_json: bool) -> None:
        """Print the counts."""
        counts = {**self.counts, "tenants": len(self.tenants)}
        lines = [f"{name.replace('_', ' ')}: {count:,}" for name, count in counts.items()]
        details = {"problem_lines": self.problem_lines, "complete": complete}
        console.answer(counts | details, *lines, as_json=as_json)
        if counts["unmatched"] and not as_json:
            where = f"taskbridge quarantine list --unmatched --pipeline {self.pipeline}"
            console.tell(f"`{where}` shows why no criterion matched.")


@click.command(epilog=examples("taskbridge record log-alerts alerts.jsonl --id-field id"))
@click.argument("pipeline")
@click.argument("file", type=click.File("rb"))
@click.option(
    "--id-field",
    metavar="NAME",
    help="The field with the message id, a string. A repeated id is ignored.  [default: every line is a new message]",
)
@data_dir_option
@json_option
def record(pipeline: str, file: BinaryIO, id_field: str | None, as_json: bool) -> None:
    """Record the messages of FILE and notify their tenants. Each line is a JSON value.

    Use `-` for standard input. Lines that cannot be recorded are skipped, and their numbers are listed.
    """
    from taskbridge.producer.recording import criteria_of

    runtime = environment.checked_runtime(pipeline)
    criteria_of(runtime, pipeline)
    recording, number = _Recording(pipeline, id_field), 0
    name = "-" if file.name == "<stdin>" else file.name
    try:
        for number, raw in enumerate(file, 1):
            if raw.strip():
                with uninterrupted():
                    recording.take(number, raw, name)
    except (TaskBridgeError, Interrupted):
        recording.show(complete=False, as_json=as_json)
        # A line that may have been recorded is not recorded twice.
        rest = f"tail -n +{number + 1} {shlex.quote(name)} | {spoken('taskbridge record')} {pipeline} -"
        console.tell(f"It was stopped at line {number}, which may have been recorded. To continue: {rest}")
        raise
    recording.show(complete=True, as_json=as_json)
    if recording.counts["problems"]:
        raise click.exceptions.Exit(1)


def _parsed(raw: bytes) -> Any:
    try:
        return json.loads(raw.decode("utf-8-sig"), parse_constant=_refuse)
    except RecursionError:
        raise InvalidInput("nested too deeply") from None
    except ValueError as error:
        raise InvalidInput(f"not JSON in UTF-8: {str(error).partition(';')[0]}") from None


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")
