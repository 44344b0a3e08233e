"""Record messages line by line as a service would, and count what became of them."""

from __future__ import annotations

import shlex
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from taskbridge.cli import console
from taskbridge.cli.interrupts import uninterrupted
from taskbridge.cli.json_lines import STDIN, Line
from taskbridge.errors import InvalidInput
from taskbridge.integration.app import record_event

__all__ = ["Recording", "record_all"]

KEPT_PROBLEMS: Final = 10_000
"""Standard input may go on for ever, so later ones are only counted."""


@dataclass(slots=True)
class Recording:
    """How far a file got. `matched` and `unmatched` are those of the new messages, `tenants` those of the matched."""

    pipeline: str
    path: Path
    id_field: str | None
    lines: int = 0
    new: int = 0
    known: int = 0
    matched: int = 0
    unmatched: int = 0
    problems: int = 0
    tenants: set[str] = field(default_factory=set)
    complete: bool = False
    problem_lines: list[dict[str, Any]] = field(default_factory=list)
    _begun: int = 0
    _done: int = 0

    def take(self, line: Line) -> None:
        """Record one line, or note what is wrong with it.

        Raises:
            Unavailable: Postgres or Redis cannot be used now.
        """
        self._begun = line.number
        try:
            self._record(line)
        except InvalidInput as error:
            self._note(line.number, str(error))
        self.lines += 1
        self._done = line.number

    def _record(self, line: Line) -> None:
        if line.fault:
            raise InvalidInput(line.fault)
        message_id = self._message_id(line.payload)
        try:
            recorded = record_event(self.pipeline, line.payload, message_id=message_id)
        except InvalidInput as error:
            # The line says which message it is, and the id may be one that was made up here.
            about = (f"pipeline {self.pipeline!r}, message {message_id!r}: ", f"pipeline {self.pipeline!r}: ")
            raise InvalidInput(str(error).removeprefix(about[0]).removeprefix(about[1])) from error
        if not recorded.new:
            self.known += 1
            return
        self.new += 1
        if recorded.tenant is None:
            self.unmatched += 1
        else:
            self.matched += 1
            self.tenants.add(recorded.tenant)

    def _message_id(self, payload: Any) -> str:
        if self.id_field is None:
            return str(uuid.uuid4())
        if not isinstance(payload, dict):
            raise InvalidInput(f"no JSON object, so it has no field {self.id_field!r} with a message id")
        if self.id_field not in payload:
            raise InvalidInput(f"the field {self.id_field!r} with the message id is missing")
        found = payload[self.id_field]
        if not isinstance(found, str):
            raise InvalidInput(f"the field {self.id_field!r} holds no string: a message id is one")
        return found

    def _note(self, number: int, text: str) -> None:
        self.problems += 1
        if self.problems <= console.SHOWN_PROBLEMS:
            console.tell(f"{self.path}:{number}: {text}")
        if self.problems <= KEPT_PROBLEMS:
            self.problem_lines.append({"line": number, "text": text})

    def how_far(self) -> str:
        """Say what is done of a file that was cut short, and what to do."""
        text = f"{self.lines} messages up to line {self._done} were read ({self.new} new, {self.known} known before, "
        text += f"{self.problems} not taken)"
        if self._begun > self._done:
            text += f"; line {self._begun} may be recorded and its tenant not notified, a worker finds it all the "
            text += "same"
        if self.id_field is not None:
            return f"{text}. Record the file again for the rest: what is there stays as it is"
        if self.path == STDIN:
            return f"{text}. The rest was not read"
        rest = f"tail -n +{self._begun + 1} {shlex.quote(str(self.path))}"
        return f"{text}. For the rest: {rest} | {console.spoken('taskbridge record')} {self.pipeline} -"

    def as_json(self) -> dict[str, Any]:
        """Return the counts, and the first problems."""
        return {
            "lines": self.lines,
            "new": self.new,
            "known_before": self.known,
            "matched": self.matched,
            "unmatched": self.unmatched,
            "tenants": len(self.tenants),
            "problems": self.problems,
            "problem_lines": self.problem_lines,
            "complete": self.complete,
        }


def record_all(recording: Recording, lines: Iterable[Line]) -> None:
    """Record the lines, counting in `recording`, with a progress bar for files. A signal ends it between two lines.

    Raises:
        InvalidInput: the file cannot be read to its end.
        Unavailable: Postgres or Redis cannot be used now.
    """
    with _progress(recording.path) as show:
        for line in lines:
            with uninterrupted():
                recording.take(line)
            show(line.end)
    recording.complete = True


@contextmanager
def _progress(path: Path) -> Iterator[Callable[[int], None]]:
    if path == STDIN:
        yield lambda _: None
        return
    with console.progress(time_left=True) as progress:
        task = progress.add_task("recording", total=path.stat().st_size if path.is_file() else None)
        yield lambda done: progress.update(task, completed=done)
