"""Run a command that cannot outlive this process."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final, Self

from taskbridge.embedded.account import Account, as_user
from taskbridge.embedded.files import closed_in_children
from taskbridge.errors import Unavailable

__all__ = ["Guarded"]

POLL_SECONDS: Final = 0.01
# `read` returns when the write end of its pipe is closed: the kernel closes it when this process ends, even by SIGKILL.
# Arguments: the pid, then signals, each followed by how many tenths of a second to wait.
_WATCHER: Final = """
read _
pid=$1; shift
while [ $# -gt 0 ] && kill -s "$1" "$pid"; do
    tenths=$2; shift 2
    while [ "$tenths" -gt 0 ] && kill -0 "$pid"; do sleep 0.1; tenths=$((tenths - 1)); done
done
kill -9 "-$pid"
"""

# Write ends of the watchers' pipes. If a forked child kept one open, the watcher would miss the end of this process.
_lifelines = closed_in_children()


class Guarded:
    """A running command, stopped by `stop`, when its `with` block ends, or when this process ends in any way.

    A shell watches this process through a pipe, and stops the command once this process is gone. Both have sessions of
    their own, so that Ctrl-C in the terminal does not reach them. The command's stdin is empty.

    Args:
        command: the program and its arguments.
        stop: the signals that stop it, each with the seconds until the next; SIGKILL to its process group comes last.
        output: receives its stdout and stderr; None: ours.
        environment: its environment; None: ours.
        directory: its working directory; None: ours.
        account: the user that runs it; None: this user.

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
        self._owner = os.getpid()
        self._stages = stop
        self._hurry = threading.Event()
        self._ending = threading.Lock()
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=None if output is None else subprocess.STDOUT,
                env=environment,
                cwd=directory,
                start_new_session=True,
                **as_user(account),
            )
        except OSError as error:
            raise Unavailable(f"{command[0]} cannot be started: {error}") from error
        self.pid = self._process.pid
        stages = [part for number, grace in stop for part in (str(int(number)), str(round(grace * 10)))]
        their_end, self._lifeline = os.pipe()
        _lifelines.add(self._lifeline)
        self._watcher = subprocess.Popen(
            ["/bin/sh", "-c", _WATCHER, "taskbridge-watcher", str(self.pid), *stages],
            stdin=their_end,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(their_end)

    def poll(self) -> int | None:
        """Return the command's exit status (128 + n if signal n ended it), or None while it runs."""
        with self._ending:
            # A forked child cannot wait for it.
            is_ours = self._owner == os.getpid() and self._process.returncode is None
            if is_ours and self._process.poll() is not None:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.pid, signal.SIGKILL)
                self._watcher.kill()
                self._watcher.wait()
                _lifelines.remove(self._lifeline)
                os.close(self._lifeline)
        status = self._process.returncode
        return 128 - status if status is not None and status < 0 else status

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the command ends by itself, and return its status.

        Raises:
            TimeoutError: it is still running after `timeout` seconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"process {self.pid} is still running after {timeout} s")
            time.sleep(POLL_SECONDS)
        return status

    def hurry(self) -> None:
        """Make a waiting `stop` send its next signal at once."""
        self._hurry.set()

    def stop(self) -> int:
        """Stop the command, wait for its end, and return its status; does nothing in a forked child."""
        if self._owner != os.getpid():
            return 0
        for number, grace in self._stages:
            if (status := self.poll()) is not None:
                return status
            os.kill(self.pid, number)
            deadline = time.monotonic() + grace
            while self.poll() is None and time.monotonic() < deadline and not self._hurry.wait(POLL_SECONDS):
                pass
            self._hurry.clear()
        if self.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
        return self.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
