"""Storing what webhooks brought: many requests in one statement."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Final, NamedTuple

from sqlalchemy import Engine

from taskbridge.store.db import driving, fetch, in_one_trip
from taskbridge.store.queries import queries
from taskbridge.store.records import Statement, refused

__all__ = ["Incoming", "Stored", "forget_received", "prepare_receiving", "receive"]

FORGOTTEN_AT_ONCE: Final = 1_000
LOCK_TIMEOUT = "200ms"
"""How long many requests wait for a record that somebody else is writing."""


class Incoming(NamedTuple):
    """What one request brings: a record as JSON text, with its sender's id of the webhook and its version, if any.

    Without a document the record is deleted. `traceparent`: the span of the request, where it is traced.
    """

    source: str
    delivery: str | None
    tenant: str
    key: str
    version: Decimal | None
    document: str | None
    traceparent: str | None = None

    @property
    def place(self) -> tuple[str, str, str]:
        """Source, tenant and key."""
        return self.source, self.tenant, self.key


class Stored(NamedTuple):
    """What came of a group.

    Which deliveries (source, id) came for the first time, which tenants (source, tenant) have changed records, and
    which messages, by their places in the sequence, are new.
    """

    deliveries: set[tuple[str, str]]
    tenants: set[tuple[str, str]]
    messages: set[int]


def receive(engine: Engine, group: Sequence[Incoming], messages: Sequence[Statement] = ()) -> Stored:
    """Store what requests brought, all or nothing; it is durable when this returns.

    Of requests with one id the first counts. Of a record the newest version counts, without versions the last. Each of
    `messages` is a statement of `message_statement`.

    Raises:
        InvalidInput: Postgres refuses one of the records.
        psycopg.errors.LockNotAvailable: another transaction has held one of the records for `LOCK_TIMEOUT`.
    """
    values = _columns(group)
    # In one order, so that two of these hardly ever wait for each other.
    order = sorted(range(len(messages)), key=lambda place: _place(messages[place]))
    with refused(), driving(engine) as driver:
        cursor = driver.cursor()
        with in_one_trip(driver, lock_timeout=LOCK_TIMEOUT):
            if group:
                cursor.execute(queries(engine)("receive"), values)
            made = {at: driver.execute(queries(engine)(messages[at].query), messages[at].values) for at in order}
        rows = cursor.fetchall() if group else []
        new = {at for at, one in made.items() if one.fetchall()}
    return Stored(_of("delivery", rows), _of("tenant", rows), new)


def prepare_receiving(engine: Engine) -> None:
    """Open a session and let it plan what `receive` does: the first group would wait for it otherwise."""
    with refused(), driving(engine) as driver:
        driver.execute(queries(engine)("receive"), _columns([]))


def _columns(group: Sequence[Incoming]) -> dict[str, list[object]]:
    names = ("sources", "deliveries", "tenants", "keys", "versions", "documents", "traceparents")
    return {name: [one[at] for one in group] for at, name in enumerate(names)}


def forget_received(engine: Engine) -> bool:
    """Delete ids of webhooks that are older than 30 days; return whether there may be more."""
    return len(fetch(engine, "forget_received", {"limit": FORGOTTEN_AT_ONCE})) == FORGOTTEN_AT_ONCE


def _place(message: Statement) -> tuple[str, str]:
    return message.values["source"], message.values["key"]


def _of(what: str, rows: Iterable[Sequence[str]]) -> set[tuple[str, str]]:
    return {(source, name) for kind, source, name in rows if kind == what}
