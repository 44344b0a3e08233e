"""The load of a soak: light, with a burst and a quiet time in each cycle."""

from __future__ import annotations

import itertools
import json
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import httpcore2
import psycopg
from sqlalchemy import Engine

from examples.whole_way.__main__ import SECRET
from examples.whole_way.downstream import ALLOWED
from taskbridge import record, record_event
from taskbridge.web import StandardWebhooks
from verification.soak.ledger import Ledger
from verification.soak.pipelines import DELETED

__all__ = ["CYCLE", "TABLES", "Load"]

CYCLE: Final = 300.0
"""Seconds after which everything repeats: the load, the restarts and the operator's commands."""
PHASES: Final = ((150.0, 4.0), (170.0, 20.0), (220.0, 0.2), (CYCLE, 4.0))
"""Until when in a cycle, and how many events a second: steady, a burst, quiet, steady."""
TABLES: Final = (
    "CREATE TABLE soak_goods (tenant text NOT NULL, id bigint PRIMARY KEY, version bigint NOT NULL)",
    "CREATE TABLE soak_accounts (customer text PRIMARY KEY, paid bigint NOT NULL)",
    "CREATE TABLE soak_totals (tenant text PRIMARY KEY, taken bigint NOT NULL)",
)
ROWS: Final = 200
"""How many rows the adopted table keeps; the oldest are deleted."""


@dataclass
class Load:
    """Sends one event after another: a webhook, plain SQL, a transaction with `record`, or a message with criteria."""

    ledger: Ledger
    receiver: str
    downstream: str
    postgres_url: str
    engine: Engine

    def __post_init__(self) -> None:
        self._chance = random.Random(1)  # noqa: S311 - repeatable on purpose
        self._numbers = itertools.count(1)
        self._rows: deque[tuple[str, int, int]] = deque()
        """Tenant, id and version of each row of the adopted table, the oldest first."""
        self._orders: deque[tuple[str, str, int]] = deque(maxlen=20)
        self._scheme = StandardWebhooks(SECRET)

    def run(self, stop: threading.Event) -> None:
        """Send until `stop`."""
        began = time.monotonic()
        with (
            httpcore2.ConnectionPool() as self._pool,
            psycopg.connect(self.postgres_url, autocommit=True) as self._connection,
        ):
            kinds: tuple[Callable[[], None], ...] = (self._webhook, self._plain_sql, self._payment, self._alert)
            while not stop.wait(self._chance.expovariate(rate(time.monotonic() - began))):
                self._chance.choice(kinds)()

    def _tenant(self) -> str:
        """One of ten tenants, or now and then one that never comes again."""
        new = self._chance.random() < 0.05
        return f"visitor-{next(self._numbers)}" if new else f"customer-{self._chance.randrange(10)}"

    def _webhook(self) -> None:
        """Send a webhook about a new order, or about one that changed. The downstream rejects some."""
        if self._orders and self._chance.random() < 0.4:
            customer, order, version = self._orders.popleft()
        else:
            customer, order, version = self._tenant(), f"order-{next(self._numbers)}", 0
        version += 1
        # An order is invalid in all of its versions or in none.
        item, amount = {0: ("", 1), 1: ("bicycle", 0)}.get(int(order[6:]) % 40, ("bicycle", 1))
        document = {"customer": customer, "order": order, "version": version, "item": item, "amount": amount}
        self._orders.append((customer, order, version))
        self.ledger.want("orders", customer, order, version, is_valid=bool(item and amount))
        body = json.dumps(document).encode()
        if self._chance.random() < 0.05:
            self._use_up_limit()
        headers = self._scheme.sign(f"{order}-{version}", body, time.time())
        status = self._pool.request("POST", self.receiver, headers=[*headers.items()], content=body).status
        if not 200 <= status < 300:
            raise RuntimeError(f"the receiver answered {status}")

    def _use_up_limit(self) -> None:
        """Be another client of the downstream, which then answers 429 until the second is over."""
        for _ in range(ALLOWED):
            self._pool.request("POST", self.downstream, content=b'{"tenant": "another client", "data": []}')

    def _plain_sql(self) -> None:
        """Insert, update, delete or copy rows of the adopted table, and tell nobody."""
        deed = self._chance.random()
        if deed < 0.4 and self._rows:
            tenant, key, version = self._rows[index := self._chance.randrange(len(self._rows))]
            self._rows[index] = tenant, key, version + 1
            self._execute(
                (tenant, key, version + 1), "UPDATE soak_goods SET version = %s WHERE id = %s", version + 1, key
            )
        elif deed < 0.9:
            row = self._new_row()
            self._execute(row, "INSERT INTO soak_goods (tenant, id, version) VALUES (%s, %s, %s)", *row)
        else:
            rows = [self._new_row() for _ in range(5)]
            for row in rows:
                self.ledger.want("goods", row[0], str(row[1]), row[2])
            with self._connection.cursor() as cursor, cursor.copy("COPY soak_goods FROM STDIN") as copy:
                for row in rows:
                    copy.write_row(row)
        while len(self._rows) > ROWS:
            tenant, key, _ = self._rows.popleft()
            self._execute((tenant, key, DELETED), "DELETE FROM soak_goods WHERE id = %s", key)

    def _new_row(self) -> tuple[str, int, int]:
        row = self._tenant(), next(self._numbers), 1
        self._rows.append(row)
        return row

    def _execute(self, wanted: tuple[str, int, int], statement: str, *values: Any) -> None:
        tenant, key, version = wanted
        self.ledger.want("goods", tenant, str(key), version)
        self._connection.execute(statement, values)

    def _payment(self) -> None:
        """Record in a transaction of the application's own, with an event after the commit, as in Django."""
        customer, key = self._tenant(), f"payment-{next(self._numbers)}"
        # For some the handler fails for a while: they go to quarantine, and are retried later.
        fails_until = time.time() + 60 if self._chance.random() < 0.02 else 0
        document = {"version": 1, "fails_until": fails_until}
        self.ledger.want("payments", customer, key, 1)
        with self.engine.begin() as connection:
            connection.exec_driver_sql(
                "INSERT INTO soak_accounts AS a VALUES (%s, 1) ON CONFLICT (customer) DO UPDATE SET paid = a.paid + 1",
                (customer.split("-")[0],),
            )
            record(customer, key, document, source="payments", connection=connection, notify="after commit")

    def _alert(self) -> None:
        """Record a message with criteria, whose tenant is handled with a delay since its last run."""
        service, key = self._tenant(), f"message-{next(self._numbers)}"
        level = self._chance.choice(("ERROR", "WARNING"))
        self.ledger.want("alerts", service, key, 1)
        record_event("alerts", {"level": level, "service": service, "version": 1}, message_id=key)


def rate(seconds: float) -> float:
    """Events a second, so many seconds after the start."""
    return next(rate for until, rate in PHASES if seconds % CYCLE < until)
