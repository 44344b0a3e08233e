"""Producers: they commit invoices, and notify or not, as applications do, and keep the truth for the verdict."""

from __future__ import annotations

import itertools
import json
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from taskbridge import app, notify_event, record, record_invoice
from taskbridge.errors import Unavailable
from taskbridge.process.runtime import runtime_of
from verification.torture.kinds import INVOICES, pipeline_of

__all__ = ["LONGEST_CALL", "PLAIN", "Expected", "Fact", "Invoice", "Producer", "Truth", "Writer"]

Write = Callable[[Connection, Sequence["Invoice"]], None]

GIVES_UP_AFTER = 20.0
LARGEST_PART = 100
LONGEST_CALL: Final = 2.0
"""Seconds of the longest call that producers ask of a handler: longer than the runner TTL of an arena."""


class Expected(StrEnum):
    """Where an invoice must end."""

    DELIVERED = "delivered"
    QUARANTINED = "quarantined"
    EITHER = "delivered or quarantined"


@dataclass(frozen=True)
class Invoice:
    """One version of an invoice, and what its handler shall do with it."""

    tenant: str
    number: str
    version: int
    behaviour: dict[str, Any] = field(default_factory=dict)
    expected: Expected = Expected.DELIVERED
    undecodable: str | None = None
    """JSON that no producer of ours would take, so it is written by plain SQL."""

    @property
    def document(self) -> dict[str, Any]:
        return {"tenant": self.tenant, "version": self.version, **self.behaviour}

    @property
    def source(self) -> str:
        """The source that it belongs to: one of parcels is called an invoice here too."""
        return pipeline_of(self.tenant)

    @property
    def text(self) -> str:
        text = json.dumps(self.document)
        return text if self.undecodable is None else f'{text[:-1]}, "odd": {self.undecodable}}}'


@dataclass
class Fact:
    """The newest version of an invoice that a producer knows to be committed, and those of which it does not know."""

    committed: Invoice | None = None
    in_doubt: list[Invoice] = field(default_factory=list)


class Truth:
    """What was committed, by (tenant, number); kept in this process only."""

    def __init__(self) -> None:
        self._facts: dict[tuple[str, str], Fact] = {}
        self.versions: set[int] = set()
        """All that may have been committed; a handler may see no other."""
        self._writing = threading.Lock()

    def doubt(self, invoices: list[Invoice]) -> None:
        with self._writing:
            self.versions.update(one.version for one in invoices)
            for one in invoices:
                self._facts.setdefault((one.tenant, one.number), Fact()).in_doubt.append(one)

    def know(self, invoices: list[Invoice]) -> None:
        with self._writing:
            for one in invoices:
                self._facts[one.tenant, one.number] = Fact(one)

    def facts(self) -> dict[tuple[str, str], Fact]:
        with self._writing:
            return dict(self._facts)


class Writer:
    """Commits and notifies, and tries again while a server is away."""

    def __init__(self, truth: Truth) -> None:
        self.truth = truth
        self._versions: Iterator[int] = itertools.count(1)

    def invoice(self, tenant: str, number: str, **rest: Any) -> Invoice:
        return Invoice(tenant, number, next(self._versions), **rest)

    def commit(
        self, *invoices: Invoice, hold: float = 0.0, write: Write | None = None, void: Sequence[Invoice] = ()
    ) -> float | None:
        """Commit the invoices in one transaction that stays open for `hold` seconds; return when, None: gave up.

        `write`: how, instead of as our producers do. `void`: what a savepoint writes that is rolled back.
        """
        write = write or _write
        deadline = time.monotonic() + GIVES_UP_AFTER
        engine = runtime_of(app).engine
        while time.monotonic() < deadline:
            try:
                with engine.connect() as connection:
                    if void:
                        rolled_back = connection.begin_nested()
                        write(connection, void)
                        rolled_back.rollback()
                    with connection.begin_nested() if void else nullcontext():
                        write(connection, invoices)
                    time.sleep(hold)
                    self.truth.doubt([*invoices])
                    connection.commit()
            except (Unavailable, DBAPIError):
                time.sleep(0.1)
            else:
                self.truth.know([*invoices])
                return time.monotonic()
        return None

    def roll_back(self, *invoices: Invoice, hold: float, write: Write) -> None:
        """Write the invoices in a transaction that stays open for `hold` seconds and is rolled back."""
        with suppress(Unavailable, DBAPIError), runtime_of(app).engine.connect() as connection:
            write(connection, invoices)
            time.sleep(hold)
            connection.rollback()

    def notify(self, tenant: str, tries: int = 1) -> bool:
        """Send one event; say whether it was taken. A producer that gives up leaves its records to be found."""
        for _ in range(tries):
            try:
                notify_event.delay(tenant, pipeline_of(tenant))
            except Unavailable:
                time.sleep(0.1)
            else:
                return True
        return False


def _write(connection: Connection, invoices: Sequence[Invoice]) -> None:
    """Write as producers do, and by plain SQL what they could not: many at once, or what Python cannot decode."""
    if len(invoices) <= LARGEST_PART and all(one.undecodable is None for one in invoices):
        for one in invoices:
            if one.source == INVOICES:
                record_invoice(one.tenant, one.number, one.document, connection)
            else:
                record(one.tenant, one.number, one.document, source=one.source, connection=connection)
        return
    rows = zip(*((one.source, one.tenant, one.number, one.text) for one in invoices), strict=True)
    connection.exec_driver_sql(
        "INSERT INTO taskbridge.records (source, tenant, key, document) "
        "SELECT * FROM unnest(%s::text[], %s::text[], %s::text[], %s::jsonb[])",
        tuple([*column] for column in rows),
    )


def _by(statement: str, *more: str) -> Write:
    def write(connection: Connection, invoices: Sequence[Invoice]) -> None:
        for one in invoices:
            connection.exec_driver_sql(statement, (one.source, one.tenant, one.number, one.text))
        for other in more:
            connection.exec_driver_sql(other)

    return write


_INSERT: Final = (
    "INSERT INTO taskbridge.records (source, tenant, key, document) VALUES (%s, %s, %s, %s::jsonb) "
    "ON CONFLICT (source, tenant, key) DO UPDATE SET document = excluded.document"
)
PLAIN: Final[tuple[Write, ...]] = (
    _by(_INSERT),
    _by("SELECT taskbridge.record(%s, %s, %s, %s::jsonb)"),
    _by(_INSERT, "NOTIFY taskbridge"),
)
"""How programs write that know nothing but SQL; the last one wakes workers that listen."""


class Producer(threading.Thread):
    """Traffic of some tenants until `stop`: everything that producers do, right and wrong, drawn from one seed.

    No two producers share a number, so each knows the newest version of its own. `outages`: some invoices let their
    handler fail, or meet a connection error. `plain`: it knows nothing but SQL and never notifies.
    """

    def __init__(
        self, name: str, seed: str, tenants: list[str], writer: Writer, *, outages: bool, plain: bool = False
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._chance = random.Random(seed)  # noqa: S311 - repeatable on purpose
        self._tenants = tenants
        self._writer = writer
        self._outages = outages
        self._plain = plain
        self._numbers: dict[str, list[str]] = {tenant: [] for tenant in tenants}
        self._drawn = 0
        self._stop_it = threading.Event()

    def stop(self) -> None:
        self._stop_it.set()
        self.join()

    def run(self) -> None:
        while not self._stop_it.is_set():
            self._write(self._chance.choice(self._tenants))
            self._stop_it.wait(self._chance.choice((0.0, 0.05, 0.3, 0.8)))

    def _write(self, tenant: str) -> None:
        chance, writer = self._chance, self._writer
        invoices = [self._draw(tenant) for _ in range(chance.choice((1, 1, 1, 2, 5, 20)))]
        if self._plain:
            self._write_plainly(invoices)
            return
        habit = chance.choices(
            ("ordinary", "dies before it notifies", "notifies first", "notifies twice", "commits late"),
            (70, 5, 5, 10, 10),
        )[0]
        if habit == "notifies first":
            writer.notify(tenant)
        if writer.commit(*invoices, hold=chance.uniform(0.2, 0.8) if habit == "commits late" else 0.0) is None:
            return
        if habit in ("dies before it notifies", "notifies first"):
            return
        for _ in range(2 if habit == "notifies twice" else 1):
            writer.notify(tenant, tries=chance.choice((1, 20)))

    def _write_plainly(self, invoices: list[Invoice]) -> None:
        """Commit, or roll back all, or a savepoint with other versions; a part of the transactions takes long."""
        chance, writer = self._chance, self._writer
        habit = chance.choices(("commits", "uses savepoints", "rolls back"), (70, 15, 15))[0]
        hold, write = chance.choices((0.0, chance.uniform(0.2, 0.8)), (80, 20))[0], chance.choice(PLAIN)
        if habit == "rolls back":
            writer.roll_back(*invoices, hold=hold, write=write)
            return
        void = [writer.invoice(one.tenant, one.number) for one in invoices] if habit == "uses savepoints" else []
        writer.commit(*invoices, hold=hold, write=write, void=void)

    def _draw(self, tenant: str) -> Invoice:
        chance, numbers = self._chance, self._numbers[tenant]
        if numbers and chance.random() < 0.1:
            return self._writer.invoice(tenant, chance.choice(numbers))
        self._drawn += 1
        number, behaviour = f"{self.name}-{self._drawn}", self._behaviour()
        if behaviour.keys() & {"act", "reject"}:
            return self._writer.invoice(tenant, number, behaviour=behaviour, expected=Expected.QUARANTINED)
        numbers.append(number)
        return self._writer.invoice(tenant, number, behaviour=behaviour)

    def _behaviour(self) -> dict[str, Any]:
        chance, outages = self._chance, int(self._outages)
        return chance.choices(
            (
                {},
                {"seconds": chance.uniform(0.02, 0.15)},
                {"seconds": LONGEST_CALL},
                {"fails": 1, "error": "other"},
                {"fails": chance.choice((1, 2)), "error": "connection"},
                {"act": "poison", "variant": 0},
                {"reject": "asked for"},
            ),
            (900, 80, 4, 4 * outages, 4 * outages, 2 * outages, 6),
        )[0]
