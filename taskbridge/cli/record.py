"""`taskbridge record`: record messages from a file or a pipe, for a pipeline with criteria."""

from __future__ import annotations

import json
import re
import shlex
import sys
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final, NoReturn

import click

from taskbridge.cli import console, environment
from taskbridge.cli.interrupts import Interrupted, uninterrupted
from taskbridge.cli.options import data_dir_option, examples, file_type, json_option
from taskbridge.common.texts import spoken
from taskbridge.errors import InvalidInput, TaskBridgeError

__all__ = ["record"]

STDIN: Final = Path("-")
LONGEST_LINE: Final = 16 * 1024 * 1024
COUNTS: Final = ("lines", "new", "known_before", "matched", "unmatched", "problems")
KEPT_PROBLEMS: Final = 10_000
"""Standard input may never end, so further problems are only counted."""


@dataclass(slots=True)
class _Recording:
    """The progress of a file. `matched`, `unmatched` and `tenants` are about new messages."""

    pipeline: str
    id_field: str | None
    counts: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(COUNTS, 0)))
    last_line: int = 0
    begun: int = 0
    tenants: set[str] = field(default_factory=set)
    problem_lines: list[dict[str, Any]] = field(default_factory=list)
    complete: bool = False

    def take(self, number: int, raw: bytes, name: str) -> None:
        """Record a line, or note what is wrong with it.

        Raises:
            Unavailable: Postgres or Redis is unavailable.
        """
        self.begun = number
        try:
            self._record(_parsed(raw))
        except InvalidInput as error:
            self.counts["problems"] += 1
            # The line number already says which message it is.
            text = re.sub(rf"^pipeline {re.escape(repr(self.pipeline))}(, message .+?)?: ", "", str(error))
            if self.counts["problems"] <= console.SHOWN_PROBLEMS:
                console.tell(f"{name}:{number}: {text}")
            if self.counts["problems"] <= KEPT_PROBLEMS:
                self.problem_lines.append({"line": number, "text": text})
        self.counts["lines"] += 1
        self.last_line = number

    def _record(self, payload: Any) -> None:
        from taskbridge.integration.app import record_event

        recorded = record_event(self.pipeline, payload, message_id=self._message_id(payload))
        if not recorded.new:
            self.counts["known_before"] += 1
            return
        self.counts.update(("new", "unmatched" if recorded.tenant is None else "matched"))
        if recorded.tenant is not None:
            self.tenants.add(recorded.tenant)

    def _message_id(self, payload: Any) -> str:
        if self.id_field is None:
            return str(uuid.uuid4())
        found = payload.get(self.id_field) if isinstance(payload, dict) else None
        if not isinstance(found, str):
            raise InvalidInput(f"the field {self.id_field!r}, which should hold the message id, is not a string")
        return found

    def show(self, *, as_json: bool) -> None:
        """Print the counts."""
        counts = {**self.counts, "tenants": len(self.tenants)}
        if as_json:
            console.emit_json({**counts, "problem_lines": self.problem_lines, "complete": self.complete})
            return
        if (more := counts["problems"] - console.SHOWN_PROBLEMS) > 0:
            console.tell(f"... and {more:,} more (--json lists them)")
        console.show_counts(counts)
        if counts["unmatched"]:
            where = f"taskbridge quarantine list --unmatched --pipeline {self.pipeline}"
            console.tell(f"`{where}` shows why no criterion matched.")

    def how_far(self, file: Path) -> str:
        """Return how far it got, and how to record the rest."""
        text = f"{self.counts['lines']} messages up to line {self.last_line} were read"
        if self.id_field is not None:
            return f"{text}. Record the file again to continue: messages with a known id are ignored"
        if self.begun > self.last_line:
            text += f"; line {self.begun} may have been recorded, too"
        if file == STDIN:
            return f"{text}. The rest was not recorded"
        rest = f"tail -n +{self.begun + 1} {shlex.quote(str(file))}"
        return f"{text}. To continue: {rest} | {spoken('taskbridge record')} {self.pipeline} -"


@click.command(
    short_help="Record messages from a file.",
    epilog=examples("taskbridge record log-alerts alerts.jsonl --id-field id"),
)
@click.argument("pipeline")
@click.argument("file", type=file_type)
@click.option(
    "--id-field",
    metavar="NAME",
    help="The field with the message id, a string. A repeated id is ignored.  [default: every line is a new message]",
)
@data_dir_option
@json_option
def record(pipeline: str, file: Path, id_field: str | None, data_dir: Path, as_json: bool) -> None:
    """Record the messages of FILE, one JSON value per line, and notify their tenants.

    Use `-` for standard input. Lines that cannot be recorded are skipped, and their numbers are listed.
    """
    from taskbridge.producer.recording import criteria_of

    done = _Recording(pipeline, id_field)
    with _opened(file) as stream:
        runtime = environment.checked_runtime(data_dir, pipeline)
        criteria_of(runtime, pipeline)
        try:
            for number, raw in _lines(stream):
                with uninterrupted():
                    done.take(number, raw, str(file))
            done.complete = True
        except (TaskBridgeError, Interrupted):
            done.show(as_json=as_json)
            console.tell(done.how_far(file))
            raise
    done.show(as_json=as_json)
    if done.counts["problems"]:
        raise click.exceptions.Exit(1)


@contextmanager
def _opened(file: Path) -> Iterator[BinaryIO]:
    if file == STDIN:
        if sys.stdin is None:
            raise InvalidInput("standard input is closed: give a file, or pipe messages in")
        yield sys.stdin.buffer
        return
    try:
        stream = file.open("rb")
    except OSError as error:
        raise InvalidInput(f"cannot read {file} ({error.strerror}): give a file that this user can read") from error
    with stream:
        if stream.peek(2).startswith(b"\x1f\x8b"):
            raise InvalidInput(f"{file} is compressed: pipe it through `gzip -dc` into `taskbridge record NAME -`")
        if not stream.peek(1):
            raise InvalidInput(f"{file} is empty: give a file with a JSON message on each line")
        yield stream


def _lines(stream: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield numbered lines that are not blank; of a line that is too long, only the beginning."""
    number = 0
    while raw := stream.readline(LONGEST_LINE + 1):
        number += 1
        rest = raw
        while len(rest) > LONGEST_LINE and not rest.endswith(b"\n"):
            rest = stream.readline(LONGEST_LINE + 1)
        if raw.strip():
            yield number, raw


def _parsed(raw: bytes) -> Any:
    if len(raw) > LONGEST_LINE:
        raise InvalidInput(f"longer than {LONGEST_LINE:,} bytes: split it into several messages")
    try:
        return json.loads(raw.decode("utf-8-sig"), parse_constant=_refuse)
    except UnicodeDecodeError:
        raise InvalidInput("not UTF-8: convert the file, for example with iconv -f WINDOWS-1252 -t UTF-8") from None
    except json.JSONDecodeError as error:
        raise InvalidInput(f"not JSON: {error.msg} at column {error.colno}") from None
    except RecursionError:
        raise InvalidInput("nested too deeply") from None
    except ValueError as error:
        raise InvalidInput(str(error).partition(";")[0]) from None


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"not JSON: {name} is not a JSON number; use null or a string")
