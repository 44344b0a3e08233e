"""Look at processes, and start one that serves: what the tests of this folder share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_SERVE = """
import json, signal, sys
from pathlib import Path
from taskbridge.embedded import serve
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
with serve(Path(sys.argv[1]), durable=False) as servers:
    print(json.dumps([servers.postgres_url, servers.redis_url]), flush=True)
    signal.pause()
"""


def alive(pid: int) -> bool:
    """Say whether `pid` runs; one that ended and was not yet reaped does not."""
    return _state_and_parent(pid) is not None


def descendants(pid: int) -> set[int]:
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (found := _state_and_parent(int(entry.name))):
            parents[int(entry.name)] = found[1]
    family = {pid}
    while more := {child for child, parent in parents.items() if parent in family} - family:
        family |= more
    return family - {pid}


def command_line(pid: int) -> list[str]:
    try:
        return [os.fsdecode(part) for part in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")]
    except (FileNotFoundError, ProcessLookupError):
        return []


def started_since(before: set[int]) -> set[int]:
    """This process's descendants that are neither in `before` nor below one that is.

    The servers of the whole session run here too, and theirs come and go.
    """
    known = before.union(*(descendants(pid) for pid in before))
    return descendants(os.getpid()) - known


def watchers_of(pid: int) -> set[int]:
    return {each for each in descendants(pid) if "taskbridge-watcher" in command_line(each)}


@dataclass
class Serving:
    process: subprocess.Popen[str]
    postgres_url: str
    redis_url: str


@contextmanager
def serving(data_dir: Path) -> Iterator[Serving]:
    """Serve `data_dir` from another process, in a process group of its own as a shell would start it."""
    with subprocess.Popen(
        [sys.executable, "-c", _SERVE, data_dir],
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,
    ) as process:
        try:
            assert process.stdout is not None
            yield Serving(process, *json.loads(process.stdout.readline()))
        finally:
            process.kill()


def _state_and_parent(pid: int) -> tuple[str, int] | None:
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, parent = status.rpartition(")")[2].split()[:2]
    return None if state in "ZX" else (state, int(parent))
