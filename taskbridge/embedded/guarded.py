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
from taskbridge.errors import Unavailable

_GUARD = Path(__file__).with_name("guard.py")

# Write ends of the guards' pipes. A forked child of this process must not keep one open.
_lifelines: set[int] = set()


def _drop_lifelines() -> None:
    while _lifelines:
        os.close(_lifelines.pop())


os.register_at_fork(after_in_child=_drop_lifelines)


class Guarded:
    """A running command that is stopped by `stop`, by leaving `with`, or when this process ends, however it ends.

    A guard process in a session of its own starts the command and watches this process through a pipe, so a Ctrl-C in
    the terminal reaches neither. `stop` gives the way the command is stopped: (signal, seconds of grace) pairs, and
    SIGKILL to its whole process group at the end. `output` takes its stdout and stderr (None: ours). The command runs
    as `account` where one is given, in `directory`, with `environment` (None: ours), and with an empty stdin.

    Raises Unavailable where the command cannot be started.
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
        """Wait for the command's own end and return its status; raises TimeoutError after `timeout` seconds."""
        try:
            return self._guard.wait(timeout)
        except subprocess.TimeoutExpired as error:
            raise TimeoutError(f"process {self.pid} still runs after {timeout} s") from error

    def hurry(self) -> None:
        """Go one stage on at once, as on a second Ctrl-C; without an earlier `stop` that is the first stage."""
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
