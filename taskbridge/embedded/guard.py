"""The guard: a small process that starts one command and stops it when its own starter is gone.

Its stdin is a pipe whose only write end is in the starter. The pipe closes when the starter wants the command stopped,
or dies in any way. Then the guard goes through the stages of `--stop`: a signal, seconds of grace, the next signal, and
SIGKILL at the end. SIGTERM, SIGINT or SIGHUP to the guard itself goes one stage on. The guard ends with the command's
status (128 + n if signal n ended it).

It runs as a file, not as a module of the package, and imports the standard library only, so that it starts in
milliseconds, whatever the package imports.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1
_STOP_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})

Stages = list[tuple[int, float]]


def main(arguments: list[str]) -> int:
    """Start the command, write its pid to `--report`, wait for its end or for the end of the starter."""
    options = _options(arguments)
    wakeups = _catch_signals()
    try:
        child = _start(options)
    except OSError as error:
        os.write(options.report, f"error {error}".encode())
        return 127
    try:
        os.write(options.report, f"pid {child.pid}".encode())
        os.close(options.report)
        _watch(child.pid, wakeups, options.stop)
    finally:
        # The child is not reaped yet, so this group id cannot have become another's.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        status = child.wait()
    return status if status >= 0 else 128 - status


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="taskbridge guard")
    parser.add_argument("--report", type=int, required=True, help="file descriptor that takes the pid")
    parser.add_argument("--stop", type=_stages, required=True, help="signal:seconds,...")
    parser.add_argument("--user", type=int)
    parser.add_argument("--group", type=int)
    parser.add_argument("command", nargs="+")
    return parser.parse_args(arguments)


def _stages(text: str) -> Stages:
    pairs = (part.split(":") for part in text.split(","))
    return [(int(number), float(seconds)) for number, seconds in pairs]


def _catch_signals() -> int:
    """Turn signals into bytes on a pipe, and return its read end. An inherited mask or SIG_IGN is undone."""
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, *_STOP_SIGNALS):
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    return read_end


def _start(options: argparse.Namespace) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        options.command,
        stdin=subprocess.DEVNULL,
        process_group=0,
        user=options.user,
        group=options.group,
        extra_groups=None if options.user is None else (),
        # Runs after the change of user, which would clear it. This process has one thread, so a function here is safe.
        preexec_fn=_die_with_this_process(options.stop[0][0]),  # noqa: PLW1509
    )


def _die_with_this_process(number: int) -> Callable[[], None] | None:
    """On Linux, let the kernel send the first stage's signal to the command when the guard itself is killed."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl
    guard_pid = os.getpid()

    def before_exec() -> None:
        prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
        if os.getppid() != guard_pid:
            os._exit(1)

    return before_exec


def _watch(pid: int, wakeups: int, stages: Stages) -> None:
    """Return when the command has ended (it is not reaped), having stopped it where stdin closed."""
    poller = select.poll()
    poller.register(sys.stdin.fileno(), select.POLLIN)
    poller.register(wakeups, select.POLLIN)
    left = [*stages, (signal.SIGKILL, float("inf"))]
    stage_ends: float | None = None
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        ready = {descriptor for descriptor, _ in poller.poll(_milliseconds_until(stage_ends))}
        go_on = stage_ends is not None and time.monotonic() >= stage_ends
        if sys.stdin.fileno() in ready and not os.read(sys.stdin.fileno(), 64):
            poller.unregister(sys.stdin.fileno())
            go_on = go_on or stage_ends is None
        if wakeups in ready and _STOP_SIGNALS.intersection(os.read(wakeups, 64)):
            go_on = True
        if go_on and left:
            number, grace = left.pop(0)
            with contextlib.suppress(ProcessLookupError):
                (os.kill if left else os.killpg)(pid, number)
            stage_ends = time.monotonic() + grace


def _milliseconds_until(deadline: float | None) -> float | None:
    if deadline is None or deadline == float("inf"):
        return None
    return max(0.0, deadline - time.monotonic()) * 1000


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
