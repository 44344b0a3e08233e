"""What a connection and Postgres say to each other, as libpq traces it (on Linux)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["Message", "Trace"]


class Message(NamedTuple):
    """One message of the protocol: of whom, its name, and the rest."""

    is_ours: bool
    name: str
    body: str


class Trace:
    """The messages of one connection, from `begin` to `end`, in order."""

    def __init__(self, pgconn: Any, path: Path) -> None:
        self._pgconn, self._path = pgconn, path
        self.begin()

    def begin(self) -> None:
        self._file = self._path.open("w")
        self._pgconn.trace(self._file.fileno())

    def end(self) -> list[Message]:
        self._pgconn.untrace()
        self._file.close()
        lines = (line.split("\t", 4) for line in self._path.read_text(encoding="utf-8", errors="replace").splitlines())
        return [Message(line[1] == "F", line[3], "".join(line[4:])) for line in lines if len(line) > 3]
