"""What was committed, and what was delivered: nothing may be lost, and nothing may come twice."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from examples.whole_way.downstream import Downstream

__all__ = ["Ledger", "Row"]

OVERDUE = 900.0
"""Seconds after which a record that is still missing counts as overdue: longer than any of them fails on purpose."""

DONE = 2_000_000_000
"""A version that no row has: nothing is wanted of it any more."""

FAILING = ("orders", "payments")
"""The pipelines that have records which fail on purpose."""

Row = tuple[str, str, str]
"""Pipeline, tenant and key."""


@dataclass
class Ledger:
    """The newest version of each row until it is delivered, and how often each revision was delivered."""

    notes: Path
    downstream: Downstream
    sent: int = 0
    delivered: int = 0
    _wanted: dict[Row, tuple[int, float]] = field(default_factory=dict)
    _revisions: set[tuple[Row, int]] = field(default_factory=set)
    _again: Counter[str] = field(default_factory=Counter)
    """How many deliveries of each pipeline were of a revision that had been delivered before."""
    _delays: list[float] = field(default_factory=list)
    _read: int = 0
    """How many of the downstream's entries were read."""
    _offsets: Counter[Path] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def want(self, pipeline: str, tenant: str, key: str, version: int, *, is_valid: bool = True) -> None:
        """Expect a version, which is about to be committed."""
        with self._lock:
            self.sent += 1
            if is_valid:
                self._wanted[pipeline, tenant, key] = version, time.time()

    def read(self) -> list[float]:
        """Read what was delivered meanwhile; return the seconds from commit to handler of rows changed by SQL."""
        for path in self.notes.iterdir():
            with path.open("rb") as file:
                file.seek(self._offsets[path])
                for line in file:
                    if line.endswith(b"\n"):
                        self._offsets[path] += len(line)
                        pipeline, tenant, key, revision, version, at = json.loads(line)
                        self._deliver((pipeline, tenant, key), revision, version, at)
        accepted = self.downstream.accepted[self._read :]
        self._read += len(accepted)
        for tenant, key, revision, version, at in accepted:
            self._deliver(("orders", tenant, key), revision, version, at)
        delays, self._delays = self._delays, []
        return delays

    def _deliver(self, row: Row, revision: int, version: int, at: float) -> None:
        with self._lock:
            self.delivered += 1
            self._again[row[0]] += (row, revision) in self._revisions
            self._revisions.add((row, revision))
            wanted, since = self._wanted.get(row, (DONE, 0.0))
            if version >= wanted:
                del self._wanted[row]
                if row[0] == "goods":
                    self._delays.append(at - since)

    @property
    def doubled(self) -> int:
        """How many deliveries came again without a reason."""
        return sum(self._again.values()) - self.repeated

    @property
    def repeated(self) -> int:
        """How many deliveries came again in pipelines some of whose records fail.

        Others of their tenant are tried to see whether the downstream works, and are delivered once more later.
        """
        return sum(self._again[pipeline] for pipeline in FAILING)

    @property
    def goods(self) -> int:
        """How many revisions of rows of the adopted table were delivered."""
        return sum(pipeline == "goods" for (pipeline, _, _), _ in self._revisions)

    def missing(self, seconds: float = 0.0) -> list[Row]:
        """Return the rows whose newest version was committed longer ago than that and is not delivered."""
        before = time.time() - seconds
        with self._lock:
            return [row for row, (_, since) in self._wanted.items() if since <= before]
