"""Run the program as its users do, in a process of its own, and look at all that it says."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import IO, Any

from tests.ending import ended
from tests.forked import PROGRAM, Forked
from tests.waiting import TIME_FACTOR, wait_until

ROOT = Path(__file__).resolve().parents[2]
MAIN = "from taskbridge.cli.main import main; main()"
SECONDS = 60.0


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    status: int
    stdout: str
    stderr: str

    @property
    def json(self) -> dict[str, Any]:
        """The one JSON object on stdout."""
        value = json.loads(self.stdout)
        assert isinstance(value, dict)
        return value


class Program:
    """The program in a directory and an environment; called with its arguments."""

    def __init__(self, directory: Path, variables: Mapping[str, str]) -> None:
        self.directory = directory
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("TASKBRIDGE_", "CELERY_"))}
        for name in ("COLUMNS", "FORCE_COLOR", "NO_COLOR"):
            kept.pop(name, None)
        self.environment = {**kept, "PYTHONPATH": str(ROOT), "TERM": "xterm", **variables}

    def __call__(self, *arguments: str | Path, **variables: str) -> Ended:
        """Run a command to its end, with stdout and stderr in files."""
        out, err = self.directory / ".stdout", self.directory / ".stderr"
        given = [*map(str, arguments)]
        process = Forked(PROGRAM, given, {**self.environment, **variables}, self.directory, out, err)
        try:
            status = process.wait(SECONDS * TIME_FACTOR)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(f"{given} still runs after {SECONDS * TIME_FACTOR:g} s: {err.read_text()}") from None
        return Ended(status, out.read_text(errors="surrogateescape"), err.read_text(errors="surrogateescape"))

    def python(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a fresh interpreter in the same directory and environment."""
        return ended([sys.executable, *arguments], {**self.environment, **variables}, self.directory, seconds=SECONDS)

    @contextmanager
    def started(self, *arguments: str | Path, **variables: str) -> Iterator[Running]:
        """Start a command in a process group of its own, as a shell does; it is killed at the end of the block."""
        out, err = self._files()
        process = Forked(PROGRAM, [*map(str, arguments)], {**self.environment, **variables}, self.directory, out, err)
        try:
            yield Running(process, out, err)
        finally:
            process.kill()
            process.wait()

    @contextmanager
    def started_afresh(
        self, *arguments: str | Path, stdin: int = subprocess.DEVNULL, **variables: str
    ) -> Iterator[Running]:
        """Start a command as `started` does, by an interpreter that has imported nothing yet."""
        out, err = self._files()
        with (
            out.open("wb") as stdout,
            err.open("wb") as stderr,
            subprocess.Popen(
                [sys.executable, "-c", MAIN, *map(str, arguments)],
                env={**self.environment, **variables},
                cwd=self.directory,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                process_group=0,
            ) as process,
        ):
            try:
                yield Running(process, out, err, process.stdin)
            finally:
                process.kill()

    @contextmanager
    def listening(self, *arguments: str, host: str = "127.0.0.1") -> Iterator[tuple[HTTPConnection, Running]]:
        """Serve on a free port, and connect to it; at the end of the block it is told to end, and ends in order."""
        with self.started(*arguments, "--port", "0") as running:
            pattern = rf"running on http://{re.escape(host)}:([0-9]+)"
            (port,) = wait_until(lambda: re.findall(pattern, running.stderr), "it listens")
            client = HTTPConnection("127.0.0.1", int(port), timeout=30)
            yield client, running
            running.process.send_signal(signal.SIGTERM)
            ended = running.end()
            client.close()
        assert ended.status == 0, ended.stderr
        assert "Traceback" not in ended.stderr

    def _files(self) -> tuple[Path, Path]:
        """Return empty files for what a command that is started says."""
        made = self.directory / "started.stdout", self.directory / "started.stderr"
        for one in made:
            one.write_bytes(b"")
        return made


@dataclass(frozen=True)
class Running:
    """A command that runs."""

    process: Forked | subprocess.Popen[bytes]
    _stdout: Path
    _stderr: Path
    stdin: IO[bytes] | None = None

    @property
    def stderr(self) -> str:
        """What it has said so far."""
        return self._stderr.read_text(errors="surrogateescape")

    def said(self) -> str:
        """All that it has said so far."""
        return self._stdout.read_text() + self.stderr

    def end(self) -> Ended:
        """Wait for its own end."""
        try:
            status = self.process.wait(SECONDS * TIME_FACTOR)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it still runs after {SECONDS * TIME_FACTOR:g} s: {self.stderr}") from None
        return Ended(status, self._stdout.read_text(), self.stderr)
