"""Start a command that cannot outlive this process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from taskbridge.embedded.account import Account
from taskbridge.embedded.files import closed_in_children
from taskbridge.errors import Unavailable

_GUARD = Path(__file__).with_name("guard.py")

# Write ends of the guards' pipes. A guard would not notice the end of this process while a child has one open.
_lifelines = closed_in_children()


class Guarded:
    """A running command that is stopped by `stop`, by leaving `with`, or when this process ends, however it ends.

    A guard process (`guard.py`) starts the command and notices the end of this process through a pipe. It has a session
    of its own, so a Ctrl-C in the terminal reaches neither of them. The command's stdin is empty.

    Args:
        command: the program and its arguments.
        stop: how it is stopped: signals, each with the seconds until the next; SIGKILL to its process group at the end.
        output: takes its stdout and stderr; None: ours.
        environment: None: ours.
        directory: where it runs; None: here.
        account: the user that it runs as; None: this one.

    Raises:
        Unavailable: the command cannot be started.
    """

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        stop: Sequence[tuple[signal.Signals, float]] = ((signal.SIGTERM, 10.0),),
        output: BinaryIO | None = None,
        environment: Mapping[str, str] | None = None,
        directory: Path | None = None,
        account: Account | None = None,
    ) -> None:
        their_end, self._lifeline = os.pipe()
        _lifelines.add(self._lifeline)
        report, their_report = os.pipe()
        options = ["--report", str(their_report), "--stop", ",".join(f"{number:d}:{grace}" for number, grace in stop)]
        if account is not None:
            options += ["--user", str(account.uid), "--group", str(account.gid)]
        try:
            # Isolated (-I -S): the user's environment and site-packages can neither slow nor break a guard.
            self._guard = subprocess.Popen(
                [sys.executable, "-I", "-S", _GUARD, *options, "--", *command],
                stdin=their_end,
                stdout=output,
                stderr=None if output is None else subprocess.STDOUT,
                env=environment,
                cwd=directory,
                pass_fds=(their_report,),
                start_new_session=True,
            )
        except BaseException:
            self._let_go()
            os.close(report)
            raise
        finally:
            os.close(their_end)
            os.close(their_report)
        with os.fdopen(report, encoding="utf-8") as lines:
            kind, _, value = lines.read().partition(" ")
        if kind != "pid":
            self.stop()
            raise Unavailable(f"{command[0]} cannot be started: {value or 'its guard process ended'}")
        self.pid = int(value)

    def poll(self) -> int | None:
        """Return the command's exit status (128 + n where signal n ended it), or None while it runs."""
        return self._guard.poll()

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the command's own end and return its status.

        Raises:
            TimeoutError: it still runs after `timeout` seconds.
        """
        try:
            return self._guard.wait(timeout)
        except subprocess.TimeoutExpired as error:
            raise TimeoutError(f"process {self.pid} still runs after {timeout} s") from error

    def hurry(self) -> None:
        """Send the next of the signals at once, as for a second Ctrl-C; if `stop` was not called yet, the first."""
        self._guard.terminate()

    def stop(self) -> int:
        """Stop the command, wait for its end, and return its status; a forked child of this process stops nothing."""
        self._let_go()
        return self._guard.wait()

    def _let_go(self) -> None:
        if self._lifeline in _lifelines:
            _lifelines.remove(self._lifeline)
            os.close(self._lifeline)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
