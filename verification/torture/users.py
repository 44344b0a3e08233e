"""Users of a table that is adopted: they know nothing of TaskBridge, and keep a ledger of what became of their work.

Each has rows of its own, so no user ever waits for another one, or loses a deadlock to one: what goes wrong is ours,
unless Postgres itself is away.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

import psycopg

from verification.torture.stalls import Stalls

__all__ = ["GOODS", "LONGEST_WAIT", "TABLE", "TABLES", "User", "Users"]

GOODS: Final = "goods"
"""The source, and the pipeline, of the adopted table."""
TABLE: Final = "torture_goods"
TABLES: Final = (
    """\
CREATE TABLE torture_goods (
    id bigint PRIMARY KEY, code text NOT NULL UNIQUE, tenant text, owner text, version bigint NOT NULL,
    number bigserial, note text
)""",
    "CREATE TABLE torture_goods_seen (tenant text, key text, revision bigint, deleted boolean, version bigint)",
    "CREATE INDEX ON torture_goods_seen (tenant, key, revision)",
)
"""`code` holds the negative of `id`, and `owner` the tenant with a suffix, so that they can change places."""
LONGEST_WAIT: Final = 1.0
"""Seconds that a user's statement may take; the machine is busy, so it is longer than what is promised."""
NO_TENANT: Final = "not a name"
"""A tenant that TaskBridge takes for none: such rows are unmatched."""
IS_AWAY: Final = ("08", "57P", "53300")
"""How SQLSTATEs begin that say that Postgres is away."""
_OWNS: Final = "-owner"
_TENANTS: Final = 4
_ROWS: Final = 40
"""Rows that a user has before any of them is deleted."""


@dataclass(frozen=True)
class _Wait:
    began: float
    ended: float
    statement: str


@dataclass
class Users:
    """The ledger of all users of one schedule."""

    url: str
    prefix: str
    transactions: int = 0
    failures: list[str] = field(default_factory=list)
    misled: list[str] = field(default_factory=list)
    left: set[tuple[str, str]] = field(default_factory=set)
    """(tenant, key) of the rows that may have been deleted, or given to another tenant."""
    renamed: bool = False
    """Whether the table was adopted again after its columns changed: rows may have left their tenants by that."""
    _waits: list[_Wait] = field(default_factory=list)
    _excused: list[tuple[float, float]] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=lambda: iter(range(1_000_000)))

    @contextmanager
    def working(self, count: int, seed: str, **pace: Any) -> Iterator[None]:
        """Let so many users work."""
        users = [User(self, next(self._numbers), f"{seed}/{number}", **pace) for number in range(count)]
        for user in users:
            user.start()
        try:
            yield
        finally:
            for user in users:
                user.stop()

    @contextmanager
    def excused(self) -> Iterator[None]:
        """Count no waits meanwhile."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._excused.append((began, time.monotonic()))

    def note(self, began: float, statement: str) -> None:
        """Note a statement that may have taken long."""
        ended = time.monotonic()
        if ended - began > LONGEST_WAIT:
            self._waits.append(_Wait(began, ended, statement))

    def note_failure(self, error: psycopg.Error, what: str) -> None:
        """Note what failed, unless Postgres was away."""
        if error.sqlstate is not None and not error.sqlstate.startswith(IS_AWAY):
            self.failures.append(f"{what}: {error.sqlstate} {str(error).splitlines()[0]}")

    def violations(self, stalls: Stalls) -> list[str]:
        """Return what must not be, one sentence each that begins with its kind."""
        waits = [
            f"user waited: {one.ended - one.began:.1f} s for {one.statement}"
            for one in self._waits
            if one.ended - one.began - stalls.between(one.began, one.ended) > LONGEST_WAIT
            and not any(since < one.ended and one.began < until for since, until in self._excused)
        ]
        failures = [f"user failed: {what}, {count} times" for what, count in Counter(self.failures).items()]
        misled = [f"user misled: {self.misled[0]}; {len(self.misled)} times"] if self.misled else []
        return [*failures, *misled, *waits]


class User(threading.Thread):
    """Inserts, updates and deletes its own rows until `stop`, several in a transaction, in an order of its own.

    `pauses`: seconds between transactions; `holds`: seconds between the statements of one.
    """

    def __init__(
        self, users: Users, number: int, seed: str, *, pauses: float = 0.5, holds: float = 0.0, strange: float = 0.05
    ) -> None:
        super().__init__(daemon=True)
        self._users, self._number = users, number
        self._chance = random.Random(seed)  # noqa: S311 - repeatable on purpose
        self._pauses, self._holds, self._strange = pauses, holds, strange
        self._base = int(users.prefix.strip("u-")) * 1_000_000 + number * 10_000
        self._rows: dict[int, str] = {}
        self._drawn = 0
        self._stop_it = threading.Event()

    def stop(self) -> None:
        self._stop_it.set()
        self.join()

    def run(self) -> None:
        while not self._stop_it.is_set():
            with suppress(psycopg.OperationalError), psycopg.connect(self._users.url, connect_timeout=5) as connection:
                # A plan that is kept may not survive what users do to the table.
                connection.prepare_threshold = None
                while not self._stop_it.wait(self._chance.uniform(0, 2 * self._pauses)) and not connection.broken:
                    self._transact(connection)
            self._stop_it.wait(0.1)

    def _transact(self, connection: psycopg.Connection[Any]) -> None:
        chance, changed = self._chance, dict(self._rows)
        acts = (self._insert, self._update, self._remove)
        self._users.transactions += 1
        what = "COMMIT"
        try:
            for _ in range(chance.choice((1, 2, 4, 8))):
                act = acts[0] if len(changed) < _ROWS / 4 else chance.choices(acts, (3, 12, 1))[0]
                what = act.__name__.strip("_").upper()
                act(connection, changed)
                if self._holds:
                    time.sleep(chance.uniform(0, 2 * self._holds))
            what = "COMMIT"
            began = time.monotonic()
            connection.commit()
            self._users.note(began, what)
        except psycopg.Error as error:
            self._users.note_failure(error, what)
            with suppress(psycopg.Error):
                connection.rollback()
            # What came of a commit that failed is not known; so these rows are left alone.
            self._rows = {} if what == "COMMIT" else self._rows
        else:
            self._rows = changed

    def _insert(self, connection: psycopg.Connection[Any], rows: dict[int, str]) -> None:
        if len(rows) >= _ROWS:
            return
        self._drawn += 1
        key, tenant = self._base + self._drawn, self._tenant()
        cursor = self._execute(
            connection,
            "INSERT INTO torture_goods (id, code, tenant, owner, version) VALUES (%s, %s, %s, %s, 0) RETURNING number",
            (str(key), str(-key), tenant, f"{tenant}{_OWNS}"),
        )
        ((number,),) = cursor.fetchall()
        ((last,),) = self._execute(connection, "SELECT lastval()").fetchall()
        if last != number:
            self._users.misled.append(f"lastval() is {last} after an insert of number {number}")
        rows[key] = tenant

    def _update(self, connection: psycopg.Connection[Any], rows: dict[int, str]) -> None:
        key = self._chance.choice([*rows])
        if self._chance.random() >= self._strange:
            self._execute(connection, "UPDATE torture_goods SET version = version + 1 WHERE id = %s", (str(key),))
            return
        tenant = self._tenant() if self._chance.random() < 0.5 else NO_TENANT
        self._leaves(rows[key], key)
        self._execute(
            connection,
            "UPDATE torture_goods SET version = version + 1, tenant = %s, owner = %s WHERE id = %s",
            (tenant, f"{tenant}{_OWNS}", str(key)),
        )
        rows[key] = tenant

    def _remove(self, connection: psycopg.Connection[Any], rows: dict[int, str]) -> None:
        key = self._chance.choice([*rows])
        self._leaves(rows.pop(key), key)
        self._execute(connection, "DELETE FROM torture_goods WHERE id = %s", (str(key),))

    def _leaves(self, tenant: str, key: int) -> None:
        """Note that a row may leave its tenant, whichever columns are tenant and key."""
        for owner in (tenant, f"{tenant}{_OWNS}"):
            self._users.left.update({(owner, str(key)), (owner, str(-key))})

    def _execute(self, connection: psycopg.Connection[Any], statement: str, values: Any = ()) -> psycopg.Cursor[Any]:
        began = time.monotonic()
        try:
            return connection.execute(statement, values)
        finally:
            self._users.note(began, statement.split(" ", 1)[0])

    def _tenant(self) -> str:
        return f"{self._users.prefix}user{self._chance.randrange(_TENANTS)}"
