"""The ledger that the handlers keep, read while it grows."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Delivery", "Ledger"]


@dataclass
class Delivery:
    """One batch that was given to a handler. Times are those of the machine's monotonic clock."""

    worker: str
    token: str
    position: int
    """Where its cursor stood; 0 where the handler had no session."""
    session: int
    """The process id of its session of Postgres; 0: it had none."""
    records: list[tuple[str, int]]
    began: float
    ended: float | None = None
    """When all was done."""
    left: float | None = None
    """When the call was over, also by an error; None: it is under way, or its process was killed."""


class Ledger:
    """All deliveries by tenant, oldest first within a process."""

    def __init__(self, books: Path) -> None:
        self._books = books
        self._read: dict[Path, int] = {}
        self._open: dict[tuple[Path, int], Delivery] = {}
        """Calls of the handler that are not over, by the number that their process gave them."""
        self._by_tenant: dict[str, list[Delivery]] = defaultdict(list)
        self._reading = threading.Lock()
        self.mixed: list[str] = []
        self.leaked: list[tuple[str, str]] = []
        """(tenant, what) of each state that a call found and that an earlier call had left."""
        self.versions: dict[str, set[int]] = defaultdict(set)
        """The versions of its invoices that each tenant's handlers were given."""
        self.tries: Counter[tuple[str, str, int]] = Counter()
        """How often each record did what its document asks for, by (tenant, number, revision)."""
        self.parcels: list[tuple[str, str, int, str]] = []
        """(tenant, number, revision, token) of all that handlers of parcels were done with, in the order of reading."""
        self.parcel_ends: Counter[tuple[str, str, int]] = Counter()
        """How often they were done with each, by (tenant, number, revision)."""

    def of(self, tenant: str) -> list[Delivery]:
        """Return the tenant's deliveries so far, in the order of their begin."""
        self.read()
        return sorted(self._by_tenant[tenant], key=lambda one: one.began)

    def between(self, since: float, until: float) -> list[Delivery]:
        """Return the deliveries of all tenants that had begun before `until` and were not over before `since`."""
        self.read()
        return [
            one
            for deliveries in [*self._by_tenant.values()]
            for one in deliveries
            if one.began <= until and (one.left is None or one.left >= since)
        ]

    def read(self) -> None:
        """Read what was written since the last time."""
        with self._reading:
            for path in self._books.glob("*.jsonl"):
                with path.open("rb") as file:
                    file.seek(self._read.get(path, 0))
                    for line in file:
                        if not line.endswith(b"\n"):
                            break
                        self._read[path] = self._read.get(path, 0) + len(line)
                        self._take(path, json.loads(line))

    def under_way(self, tenant: str) -> str | None:
        """Return the worker that has the tenant's batch now, else the one that had the last."""
        found = self.of(tenant)
        current = [one for one in found if one.ended is None] or found
        return current[-1].worker if current else None

    def wait_for(self, tenant: str, condition: Callable[[list[Delivery]], bool], seconds: float) -> bool:
        """Wait until `condition` holds of the tenant's deliveries; say whether it does."""
        deadline = time.monotonic() + seconds
        while not condition(self.of(tenant)):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.03)
        return True

    def _take(self, path: Path, line: dict[str, Any]) -> None:
        tenant = line["tenant"]
        if line["what"] == "tried":
            number, revision = line["record"]
            self.tries[tenant, number, revision] += 1
        elif line["what"] == "mixed":
            self.mixed.append(f"{tenant}: {line['records']}")
        elif line["what"] == "leaked":
            self.leaked.append((tenant, f"{', '.join(line['found'])} ({line['worker']})"))
        elif line["what"] == "ended":
            self._open[path, line["call"]].ended = line["at"]
            for number, revision in line.get("parcels", ()):
                self.parcels.append((tenant, number, revision, line["token"]))
                self.parcel_ends[tenant, number, revision] += 1
        elif line["what"] == "left":
            # It may have met an error before it began with its records.
            if one := self._open.pop((path, line["call"]), None):
                one.left = line["at"]
        else:
            records = [(number, revision) for number, revision in line["records"]]
            one = Delivery(line["worker"], line["token"], line["position"], line["session"], records, line["at"])
            self._open[path, line["call"]] = one
            self._by_tenant[tenant].append(one)
            self.versions[tenant].update(line["versions"])
