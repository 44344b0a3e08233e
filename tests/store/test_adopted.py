"""Tables of the user's own as sources: whoever changes a row, in whichever way, its tenant's pipelines see it."""

from __future__ import annotations

import shutil
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine
from sqlalchemy.exc import ProgrammingError

from taskbridge.errors import InvalidInput, InvalidName, Unavailable
from taskbridge.store import (
    Unread,
    adopt,
    adoption,
    adoption_statements,
    backfills_due,
    check_adoptions,
    register_pipeline,
    trigger_faults,
    unadopt,
)
from taskbridge.store.transaction import OtherReader
from tests.store.adopting import ORDERS, Reader, adopted, backfilled, rows, run
from tests.store.sweeping import waiting
from tests.waiting import TIME_FACTOR, wait_until

Role = tuple[str, Engine]
PSQL = shutil.which("psql") or "psql"
FOUR = "INSERT INTO orders VALUES (1, 'acme', 1, 'a'), (2, 'acme', 2, 'b'), (3, 'bolt', 3, 'c'), (4, NULL, 4, 'd')"


@pytest.fixture
def reader(engine: Engine) -> Reader:
    """The table `orders`, adopted, with three rows that were seen, and one of nobody."""
    run(engine, ORDERS)
    adopted(engine)
    run(engine, FOUR)
    made = Reader(engine)
    assert made.seen() == {"acme": ["1", "2"], "bolt": ["3"]}
    return made


def test_a_table_that_somebody_holds_keeps_a_worker_no_longer_than_half_a_second(
    engine: Engine, reader: Reader
) -> None:
    run(engine, "INSERT INTO orders VALUES (5, 'acme', 1, 'a')")
    with engine.begin() as other:
        other.exec_driver_sql("LOCK orders IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(Unread, match="lock timeout"):
            reader.records("acme")
    assert reader.seen() == {"acme": ["5"]}


def test_a_record_has_the_row_as_it_is(engine: Engine) -> None:
    run(
        engine,
        "CREATE DOMAIN money2 AS numeric",
        "CREATE TABLE orders (id bigint PRIMARY KEY, customer text, total numeric, parts numeric[], price money2, "
        "prices money2[], n bigint, "
        "at timestamptz, document jsonb, small int, double numeric GENERATED ALWAYS AS (total * 2) STORED)",
    )
    adopted(engine)
    reader = Reader(engine)
    assert reader.seen() == {}
    run(
        engine,
        "INSERT INTO orders VALUES (1, 'acme', 1234567890123456789.10, '{0.10,2}', 0.10, '{0.10}', 9007199254740993, "
        "'2026-01-02 03:04:05.678+00', '{\"a\": [1.50]}')",
        # Digits of a column that came later, and of one that has another type now, are kept in workers that run.
        "ALTER TABLE orders ADD COLUMN late numeric DEFAULT 0.10, ALTER COLUMN small TYPE numeric USING 0.20",
    )
    (one,) = reader.records("acme")
    assert (one.external_id, one.deleted) == ("1", False)
    document = dict(one.document)
    assert document.pop("at").startswith("2026-01-02T")
    assert document == {
        "id": 1,
        "customer": "acme",
        "total": "1234567890123456789.10",
        "parts": ["0.10", "2"],
        "price": "0.10",
        "prices": ["0.10"],
        "n": 9007199254740993,
        "document": {"a": [1.5]},
        "double": "2469135780246913578.20",
        "late": "0.10",
        "small": "0.20",
    }
    assert Decimal(document["total"]) * 2 == Decimal(document["double"])


def test_updates_deletes_and_upserts_are_seen(engine: Engine, reader: Reader) -> None:
    run(engine, "UPDATE orders SET total = total + 1 WHERE id IN (1, 3)")
    assert reader.seen() == {"acme": ["1"], "bolt": ["3"]}
    run(engine, "UPDATE orders SET note = note, total = total", "DELETE FROM orders WHERE id = 99")
    assert reader.seen() == {}, "nothing has changed"
    run(engine, "DELETE FROM orders WHERE id = 1")
    (gone,) = reader.records("acme")
    assert (gone.external_id, gone.deleted, dict(gone.document)) == ("1", True, {})
    upsert = "INSERT INTO orders VALUES {} ON CONFLICT (id) DO UPDATE SET note = excluded.note"
    run(engine, upsert.format("(2, 'acme', 2, 'new'), (3, 'bolt', 3, 'c'), (5, 'bolt', 5, 'e')"))
    assert reader.seen() == {"acme": ["2"], "bolt": ["5"]}
    run(engine, "INSERT INTO orders VALUES (1, 'acme', 1, 'again')")
    assert reader.seen() == {"acme": ["1"]}
    run(engine, "UPDATE orders o SET note = 'joined' FROM (VALUES (2), (3)) v (id) WHERE v.id = o.id")
    assert reader.seen() == {"acme": ["2"], "bolt": ["3"]}
    run(
        engine,
        "MERGE INTO orders o USING (VALUES (2), (9)) v (id) ON v.id = o.id WHEN MATCHED THEN DELETE "
        "WHEN NOT MATCHED THEN INSERT VALUES (v.id, 'bolt', 9, 'm')",
    )
    assert reader.seen() == {"acme": ["-2"], "bolt": ["9"]}


def test_copy_and_truncate_are_seen(engine: Engine, reader: Reader) -> None:
    url = engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(url) as copier, copier.cursor().copy("COPY orders FROM STDIN") as copy:
        for number in range(10, 15):
            copy.write_row((number, "bolt", number, "copied"))
    assert reader.seen() == {"bolt": ["10", "11", "12", "13", "14"]}
    run(engine, "TRUNCATE orders")
    assert reader.seen() == {"acme": ["-1", "-2"], "bolt": ["-10", "-11", "-12", "-13", "-14", "-3"]}


def test_a_row_that_moves_is_seen_by_both_tenants(engine: Engine, reader: Reader) -> None:
    run(engine, "UPDATE orders SET customer = 'bolt' WHERE id = 1")
    assert reader.seen() == {"acme": ["-1"], "bolt": ["1"]}
    run(engine, "UPDATE orders SET customer = NULL WHERE id = 2", "UPDATE orders SET customer = 'acme' WHERE id = 4")
    assert reader.seen() == {"acme": ["-2", "4"]}
    run(engine, "UPDATE orders SET id = 40 WHERE id = 4")
    assert reader.seen() == {"acme": ["-4", "40"]}


def test_rows_of_partitions_are_seen_however_they_are_written(engine: Engine) -> None:
    run(
        engine,
        "CREATE TABLE orders (id int, note text, customer text, region text, PRIMARY KEY (region, id)) "
        "PARTITION BY LIST (region)",
        # The columns of a partition may stand in another order.
        "CREATE TABLE north (region text NOT NULL, customer text, note text, id int NOT NULL)",
        "ALTER TABLE orders ATTACH PARTITION north FOR VALUES IN ('n')",
        "CREATE TABLE south PARTITION OF orders FOR VALUES IN ('s')",
    )
    adopted(engine, "orders", "customer", "region", "id")
    reader = Reader(engine)
    run(engine, "CREATE TABLE west PARTITION OF orders FOR VALUES IN ('w')")
    insert = "INSERT INTO {} (id, customer, region) VALUES ({}, 'acme', '{}')"
    run(engine, insert.format("orders", 1, "n"), insert.format("south", 2, "s"), insert.format("west", 3, "w"))
    assert reader.seen() == {"acme": ['["n", "1"]', '["s", "2"]', '["w", "3"]']}
    run(engine, f"SET LOCAL session_replication_role = replica; {insert.format('orders', 4, 'w')}")
    assert reader.seen() == {"acme": ['["w", "4"]']}
    run(engine, "DELETE FROM orders WHERE id = 4")
    assert reader.seen() == {"acme": ['-["w", "4"]']}
    run(engine, "UPDATE north SET note = 'x'", "UPDATE orders SET note = note")
    assert reader.seen() == {"acme": ['["n", "1"]']}
    run(engine, "UPDATE orders SET region = 's' WHERE id = 1")
    assert reader.seen() == {"acme": ['-["n", "1"]', '["s", "1"]']}
    run(engine, "UPDATE orders SET customer = 'bolt' WHERE id = 2", "DELETE FROM west")
    assert reader.seen() == {"acme": ['-["s", "2"]', '-["w", "3"]'], "bolt": ['["s", "2"]']}
    run(engine, "TRUNCATE south")
    assert reader.seen() == {"acme": ['-["s", "1"]'], "bolt": ['-["s", "2"]']}


def test_names_that_need_quotes_and_other_schemas_will_do(engine: Engine) -> None:
    run(
        engine,
        'CREATE SCHEMA "My Shop"',
        'CREATE TABLE "My Shop"."The ""Orders"" 100%" '
        '("Id" int PRIMARY KEY, "kunde :x" text, "%s" numeric, "a{b}c" int, "in\n  lines" numeric)',
    )
    table = '"My Shop"."The ""Orders"" 100%"'
    adopted(engine, table, "kunde :x", "Id", source="sales", watched=["%s", "a{b}c"])
    run(engine, f"INSERT INTO {table} VALUES (1, 'acme', 0.10, 5, 6)")  # noqa: S608
    reader = Reader(engine, "sales")
    (one,) = reader.records("acme")
    assert dict(one.document) == {"Id": 1, "kunde :x": "acme", "%s": "0.10", "a{b}c": 5, "in\n  lines": "6"}
    run(engine, f"TRUNCATE {table}")
    assert reader.keys("acme") == ["-1"]


def test_only_watched_columns_count_and_tenant_and_key_always_do(engine: Engine) -> None:
    """Also columns of types that have no equality."""
    run(engine, ORDERS, "ALTER TABLE orders ADD COLUMN doc json, ADD COLUMN at point")
    adopted(engine, watched=["total", "doc", "at"])
    reader = Reader(engine)
    run(engine, FOUR, "UPDATE orders SET doc = '{\"a\": 1}', at = '(1,2)'")
    reader.seen()
    run(engine, "UPDATE orders SET note = 'x', doc = doc, at = '(1,2)'")
    assert reader.seen() == {}
    run(engine, "UPDATE orders SET doc = '{\"a\": 2}' WHERE id = 2")
    assert reader.seen() == {"acme": ["2"]}
    run(engine, "UPDATE orders SET total = 9 WHERE id = 1", "UPDATE orders SET customer = 'acme' WHERE id = 3")
    assert reader.seen() == {"acme": ["1", "3"], "bolt": ["-3"]}


def test_what_a_handler_writes_back_does_not_wake_it_and_other_work_is_seen(engine: Engine, reader: Reader) -> None:
    sent, gone = "UPDATE orders SET note = 'sent' WHERE id = {}", "DELETE FROM orders WHERE id = {}"
    reader.handle("acme", reader.claim(), sent.format(1), gone.format(2))
    assert reader.seen() == {}
    others = ("INSERT INTO orders VALUES (6, 'acme', 6, 'split')", "UPDATE orders SET customer = 'bolt' WHERE id = 1")
    reader.handle("acme", reader.claim(), sent.format(3), *others)
    assert reader.seen() == {"acme": ["6"], "bolt": ["1", "3"]}
    run(engine, "UPDATE orders SET note = 'by hand' WHERE id = 6")
    assert reader.seen() == {"acme": ["6"]}


def test_no_other_writer_can_hide_changes_as_a_batch_does(engine: Engine, reader: Reader) -> None:
    reader.claim()
    with reader.cursors.transaction(reader.who()) as transaction:
        muted = transaction.connect().exec_driver_sql("SHOW taskbridge.muted").scalar_one()
    with engine.begin() as connection:
        connection.exec_driver_sql("SELECT set_config('taskbridge.muted', %s, true)", (muted,))
        connection.exec_driver_sql("UPDATE orders SET note = 'hidden' WHERE id = 1")
        connection.exec_driver_sql("DELETE FROM orders WHERE id = 2")
    assert reader.seen() == {"acme": ["-2", "1"]}


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read"])
def test_a_pipeline_that_comes_while_a_batch_is_open_sees_what_the_batch_writes_back(
    engine: Engine, reader: Reader, isolation: str
) -> None:
    run(engine, f"ALTER DATABASE \"{engine.url.database}\" SET default_transaction_isolation TO '{isolation}'")
    engine.dispose()
    register_pipeline(engine, "orders", "orders")
    write_back = ("UPDATE orders SET note = 'sent' WHERE id = 1", "DELETE FROM orders WHERE id = 2")
    audit, page = Reader(engine, pipeline="audit"), reader.claim()
    with reader.cursors.transaction(reader.who()) as transaction:
        for statement in write_back:
            transaction.connect().exec_driver_sql(statement)
        register_pipeline(engine, "audit", "orders")
        assert audit.seen(["acme"]) == {"acme": ["1", "2"]}
        with pytest.raises(OtherReader):
            transaction.advance(transaction.move(page))
    assert rows(engine, "SELECT note FROM orders WHERE id IN (1, 2) ORDER BY id") == [("a",), ("b",)]
    reader.handle("acme", reader.claim(), *write_back)
    assert audit.seen(["acme"]) == {"acme": ["-2", "1"]}


def test_a_pipeline_that_comes_at_the_commit_of_a_batch_waits_for_it(engine: Engine, reader: Reader) -> None:
    audit, page = Reader(engine, pipeline="audit"), reader.claim()
    with ThreadPoolExecutor(2) as pool:
        with engine.begin() as locking, reader.cursors.transaction(reader.who()) as transaction:
            for statement in ("UPDATE orders SET note = 'sent' WHERE id = 1", "DELETE FROM orders WHERE id = 2"):
                transaction.connect().exec_driver_sql(statement)
            # The advance waits for its cursor, after it has looked for other readers.
            locking.exec_driver_sql("SELECT FROM taskbridge.sync_cursors WHERE tenant = 'acme' FOR UPDATE")
            advancing = pool.submit(transaction.advance, transaction.move(page))
            wait_until(lambda: waiting(engine) == 1, "the advance waits")
            coming = pool.submit(register_pipeline, engine, "audit", "orders")
            wait_until(lambda: coming.done() or waiting(engine) == 2, "it came, or it waits")
            if coming.done():
                audit.seen(["acme"])
            locking.rollback()
            advancing.result(30)
        coming.result(30)
    assert {one.external_id: one.document.get("note") for one in audit.records("acme")} == {"1": "sent", "2": None}


def test_a_row_whose_tenant_or_key_is_not_allowed_is_kept_as_unmatched_and_breaks_nothing(engine: Engine) -> None:
    run(
        engine,
        "CREATE TYPE whose AS ENUM ('7', ' lead', '')",
        "CREATE TABLE orders (id text UNIQUE NOT NULL, customer whose)",
    )
    adopted(engine)
    reader = Reader(engine)
    run(engine, "INSERT INTO orders VALUES ('1', ' lead'), ('2', ''), (repeat('x', 201), '7')")
    assert reader.keys("7") == []
    unmatched = "SELECT reason FROM taskbridge.records WHERE tenant = '' AND discarded_at IS NULL ORDER BY reason"
    found = [reason[:19] for (reason,) in rows(engine, unmatched)]
    assert found == ["tenant '7': the key", "the tenant ' lead' ", "the tenant is empty"]
    run(engine, "UPDATE orders SET customer = '7' WHERE id = '1'", "DELETE FROM orders WHERE id <> '1'")
    assert reader.keys("7") == ["1"]
    assert rows(engine, unmatched) == []
    # A key may be null once its column allows it: such a row is no record.
    run(engine, "ALTER TABLE orders ALTER id DROP NOT NULL", "INSERT INTO orders VALUES (NULL, '7'), ('5', '7')")
    run(engine, "UPDATE orders SET id = '6' WHERE id IS NULL", "UPDATE orders SET id = NULL WHERE id = '1'")
    run(engine, "DELETE FROM orders WHERE id IS NULL")
    assert reader.keys("7") == ["-1", "5", "6"]


@pytest.mark.parametrize("kind", ["int", "text"])
def test_a_statement_writes_its_records_in_one_order(engine: Engine, kind: str) -> None:
    # So that two of them that write the same records do not end each other.
    run(engine, f"CREATE TABLE orders (customer {kind}, id int PRIMARY KEY)")
    adopted(engine)
    for customers in ("n % 7", "(n + 1) % 7"):
        run(
            engine,
            f"INSERT INTO orders SELECT {customers}, n FROM generate_series(50, 1, -1) n "  # noqa: S608 - our constants
            "ON CONFLICT (id) DO UPDATE SET customer = excluded.customer",
        )
        found = rows(engine, "SELECT tenant, key FROM taskbridge.records WHERE NOT deleted ORDER BY revision")
        assert len(found) == 50
        assert found == sorted(found)


def test_adopting_again_with_other_watched_columns_reaches_a_worker_that_runs(engine: Engine) -> None:
    run(engine, ORDERS)
    reader = Reader(engine)
    assert reader.seen() == {}  # before there is anything to know
    adopted(engine)
    run(engine, FOUR)
    assert reader.seen() == {"acme": ["1", "2"], "bolt": ["3"]}
    adopted(engine, watched=["total"])
    run(engine, "UPDATE orders SET note = 'x'", "UPDATE orders SET total = 7 WHERE id = 3")
    assert reader.seen() == {"bolt": ["3"]}


@pytest.mark.parametrize(("old", "new"), [("customer", "client"), ("id", "number"), ("total", "sum")])
def test_a_column_is_renamed_together_with_another_adoption(engine: Engine, reader: Reader, old: str, new: str) -> None:
    adopted(engine, watched=["total"])
    # given what was printed where the column had its new name
    rename = f"ALTER TABLE orders RENAME {old} TO {new}"
    run(engine, rename)
    named = {name: new if name == old else name for name in ("customer", "id", "total")}
    if old == "id":
        unadopt(engine, "orders")
    wanted = adoption(engine, "orders", named["customer"], [named["id"]], watched=[named["total"]])
    run(engine, f"ALTER TABLE orders RENAME {new} TO {old}")
    # when it is run together with the rename, then what is written afterwards is recorded
    run(engine, "; ".join((rename, *adoption_statements(wanted))))
    run(engine, f"UPDATE orders SET {named['total']} = 10 WHERE note = 'b'")  # noqa: S608
    assert reader.seen() == {"acme": ["2"]}
    # Nobody saw what changed while it was given up.
    assert [one.is_recorded for one in check_adoptions(engine)["orders"]] == [True] * (old == "id")


def test_what_is_pending_is_read_by_the_new_name_of_a_column_and_what_came_since_is_sent_again(
    engine: Engine, reader: Reader
) -> None:
    run(engine, "UPDATE orders SET note = 'x' WHERE id = 1")
    run(engine, "ALTER TABLE orders RENAME customer TO client", "ALTER TABLE orders RENAME id TO number")
    run(engine, "UPDATE orders SET note = 'y' WHERE number = 2", "DELETE FROM orders WHERE number = 3")
    assert reader.seen() == {"acme": ["1"]}
    assert "called otherwise" in rows(engine, "SELECT reason FROM taskbridge.records WHERE tenant = ''")[0][0]
    run(engine, "ALTER TABLE orders ADD COLUMN customer text")
    with pytest.raises(InvalidInput, match=r"was adopted with --tenant client --key number"):
        adoption(engine, "orders", "customer", ["number"])
    again = adopted(engine, "orders", "client", "number")
    assert [one.is_recorded for one in check_adoptions(engine)["orders"]] == [True]
    assert backfilled(engine, again)[-1] == 3
    assert reader.seen() == {"acme": ["1", "2"], "bolt": ["-3"]}
    assert check_adoptions(engine) == {"orders": []}
    assert rows(engine, "SELECT FROM taskbridge.records WHERE tenant = '' AND discarded_at IS NULL") == []


@pytest.mark.parametrize(
    ("column", "other", "value", "expected"),
    [
        ("customer", "text", "'bolt'", {"acme": ["-1", "-2"], "bolt": ["1", "2"]}),
        ("id", "int", "id + 100", {"acme": ["-1", "-2", "101", "102"]}),
    ],
)
def test_columns_that_swap_their_names_stop_the_source_and_delete_nothing(
    engine: Engine, column: str, other: str, value: str, expected: dict[str, list[str]]
) -> None:
    # given a row that is pending, and a column that is about to take the tenant's or the key's place
    run(engine, "CREATE TABLE orders (id int PRIMARY KEY, customer text, note text)")
    adopted(engine)
    reader = Reader(engine)
    run(engine, "INSERT INTO orders VALUES (1, 'acme', 'a'), (2, 'acme', 'b')")
    run(engine, f"ALTER TABLE orders ADD COLUMN other {other}", f"UPDATE orders SET other = {value}")  # noqa: S608
    assert reader.seen() == {"acme": ["1", "2"]}
    run(engine, "UPDATE orders SET note = 'c' WHERE note = 'a'")
    if column == "id":
        run(engine, "ALTER TABLE orders ALTER other SET NOT NULL", "CREATE UNIQUE INDEX ON orders (other)")
    # when it is swapped as an online migration does
    swap = f"ALTER TABLE orders RENAME {column} TO former; ALTER TABLE orders RENAME other TO {column}"
    run(engine, swap)
    # then no write fails, nothing is delivered, and it is said why
    run(engine, "UPDATE orders SET note = 'd' WHERE note = 'c'")
    with pytest.raises(Unread, match=f"is stopped, because in public.orders, {column} is another column"):
        reader.seen()
    assert any("is another column" in one.what for one in check_adoptions(engine)["orders"])
    with pytest.raises(InvalidInput, match="add --again"):
        adoption(engine, "orders", "customer", ["id"])
    found = adoption(engine, "orders", "customer", ["id"], other_keys=True)
    assert adopt(engine, found)
    assert backfilled(engine, found)[-1] == 2
    assert reader.seen() == expected
    assert check_adoptions(engine) == {"orders": []}


def test_after_a_restore_the_names_of_columns_count_and_not_their_numbers(engine: Engine, reader: Reader) -> None:
    run(
        engine,
        # A dump leaves dropped columns out, so others have their numbers; it makes triggers after the rows.
        "DROP TABLE orders",
        ORDERS.replace("id bigint PRIMARY KEY, customer text,", "customer text, id bigint PRIMARY KEY,"),
        "ALTER TABLE taskbridge.adopted DISABLE TRIGGER number_columns",
        "UPDATE taskbridge.adopted SET relation = 'orders'::regclass",
        "ALTER TABLE taskbridge.adopted ENABLE TRIGGER number_columns",
    )
    adopted(engine)
    run(engine, "INSERT INTO orders VALUES ('acme', 7, 7, 'a')")
    assert reader.seen() == {"acme": ["7"]}


def test_large_rows_come_with_their_batch(engine: Engine, reader: Reader) -> None:
    run(
        engine,
        "INSERT INTO orders SELECT n, 'acme', n, string_agg(md5(m::text || n), '') FROM "
        "generate_series(100, 104) n, generate_series(1, 1000) m GROUP BY n",
        "DELETE FROM orders WHERE id = 102",
    )
    found = sorted(reader.records("acme"), key=lambda one: one.external_id)
    assert [(one.external_id, one.deleted, len(one.document.get("note", ""))) for one in found] == [
        (str(at), at == 102, 0 if at == 102 else 32_000) for at in range(100, 105)
    ]
    bare = {one.external_id: one for one in Reader(engine, pipeline="other").claim(died=True).records}
    assert (dict(bare["100"].document), bare["100"].deleted, bare["102"].deleted) == ({}, False, True)
    loaded = [reader.cursors.load(bare[name]) for name in ("100", "102")]
    assert [(one.deleted, len(one.document)) for one in loaded if one] == [(False, 4), (True, 0)]


@pytest.mark.parametrize("size", [1, 100])
def test_a_backfill_sends_what_changed_between_two_adoptions(engine: Engine, size: int) -> None:
    run(engine, ORDERS, FOUR)
    found, reader = adopted(engine), Reader(engine)
    assert backfilled(engine, found)[-1] == 4
    assert reader.seen() == {"acme": ["1", "2"], "bolt": ["3"]}
    unadopt(engine, "orders")
    run(engine, "UPDATE orders SET note = 'missed' WHERE id = 2", "DELETE FROM orders WHERE id = 3")
    run(engine, "INSERT INTO orders VALUES (5, 'acme', 5, 'e')")
    found = adopted(engine)
    run(engine, "UPDATE orders SET note = 'seen' WHERE id = 1")
    before = rows(engine, "SELECT revision FROM taskbridge.records WHERE key = '1'")
    assert backfilled(engine, found, 1, size)[-1] == min(size, 4)
    assert backfilled(engine, found, None, size)[-1] == 4
    assert rows(engine, "SELECT revision FROM taskbridge.records WHERE key = '1'") == before, "a trigger saw it"
    assert reader.seen() == {"acme": ["1", "2", "5"], "bolt": ["-3"]}
    assert len(backfilled(engine, found)) == 1
    assert reader.seen() == {}


REFUSED: dict[str, tuple[tuple[str, ...], dict[str, Any], str]] = {
    "no table": ((), {}, "there is no table orders"),
    "a view": (("CREATE VIEW orders AS SELECT 1 id, 'a' customer",), {}, "is a view: adopt the table"),
    "unlogged": ((ORDERS.replace("TABLE", "UNLOGGED TABLE"),), {}, "is unlogged"),
    "inherited": ((ORDERS, "CREATE TABLE more () INHERITS (orders)"), {}, "is inherited from"),
    "a partition": (
        (
            f"{ORDERS.replace('orders', 'whole')} PARTITION BY RANGE (id)",
            "CREATE TABLE orders PARTITION OF whole DEFAULT",
        ),
        {},
        "is a partition: adopt its parent",
    ),
    "no column": (
        (ORDERS,),
        {"tenant": "Customer"},
        "no column 'Customer': adopt it by some of id, customer, total, note",
    ),
    "not unique": ((ORDERS,), {"keys": ["note"]}, "note may be null"),
    "no index": (
        ("CREATE TABLE orders (id int NOT NULL, customer text)", "CREATE UNIQUE INDEX ON orders (id) WHERE id > 0"),
        {},
        "no unique index covers customer, id or some of these",
    ),
    "a temporary one": ((ORDERS.replace("TABLE", "TEMPORARY TABLE"),), {}, "is temporary: make it a permanent table"),
    "a type": (("CREATE TABLE orders (id int PRIMARY KEY, customer jsonb)",), {}, "customer is of type jsonb"),
    "a name": (
        ('CREATE TABLE "Orders" (id int PRIMARY KEY, customer text)',),
        {"table": '"Orders"'},
        "give the source a name with --source",
    ),
    "ours": ((), {"table": "taskbridge.pauses", "tenant": "tenant", "keys": ["pipeline"]}, "TaskBridge's own"),
    "other records": (
        (ORDERS, "INSERT INTO taskbridge.records (source, tenant, key, document) VALUES ('orders', 'a', '1', '{}')"),
        {},
        "has records that were written by record",
    ),
}


def test_a_table_that_cannot_be_a_source_is_refused_with_the_reason(engine: Engine) -> None:
    for made, options, reason in REFUSED.values():
        run(engine, *made)
        wanted = {"table": "orders", "tenant": "customer", "keys": ["id"], **options}
        with pytest.raises((InvalidInput, InvalidName), match=reason):
            adoption(engine, **wanted)
        engine.dispose()
        run(engine, "DROP SCHEMA public CASCADE", "CREATE SCHEMA public", "DELETE FROM taskbridge.records")


def test_rows_that_a_subscription_brings_are_seen_one_by_one(engine: Engine) -> None:
    run(
        engine,
        ORDERS,
        "CREATE SUBSCRIPTION feed CONNECTION 'dbname=nowhere' PUBLICATION feed WITH (connect = false)",
        "INSERT INTO pg_subscription_rel (srsubid, srrelid, srsubstate) "
        "SELECT oid, 'orders'::regclass, 'r' FROM pg_subscription WHERE subname = 'feed'",
    )
    try:
        adopted(engine)
        triggers = "SELECT tgname FROM pg_trigger WHERE tgname LIKE 'taskbridge%' ORDER BY 1"
        assert rows(engine, triggers) == [("taskbridge_orders_row",), ("taskbridge_orders_truncate",)]
        with engine.begin() as connection:
            connection.exec_driver_sql("SET LOCAL session_replication_role = replica")
            connection.exec_driver_sql(FOUR)
        assert Reader(engine).seen() == {"acme": ["1", "2"], "bolt": ["3"]}
    finally:
        # Else the database could not be dropped.
        run(engine, "ALTER SUBSCRIPTION feed SET (slot_name = NONE)", "DROP SUBSCRIPTION feed")


def test_a_source_is_one_table_with_one_tenant_and_key(engine: Engine, reader: Reader) -> None:
    run(engine, "CREATE TABLE others (id int PRIMARY KEY, customer text)", "CREATE UNIQUE INDEX ON orders (id, note)")
    run(engine, "ALTER TABLE orders ALTER note SET NOT NULL")
    with pytest.raises(InvalidInput, match=r"is that of the table public\.orders"):
        adoption(engine, "others", "customer", ["id"], source="orders")
    with pytest.raises(InvalidInput, match="adopted with --tenant customer --key id"):
        adoption(engine, "orders", "note", ["id"])
    # The same table may be a second source, with another tenant.
    run(engine, "CREATE TABLE x ()")
    adopted(engine, "orders", "note", "id", source="by-note")
    run(engine, "INSERT INTO orders VALUES (9, 'bolt', 9, 'acme')")
    assert (reader.seen(), Reader(engine, "by-note", "p").seen()) == ({"bolt": ["9"]}, {"acme": ["9"]})


def test_who_writes_the_table_needs_no_right_of_ours_and_who_adopts_needs_both(engine: Engine, role: Role) -> None:
    name, own = role
    run(engine, ORDERS)
    with pytest.raises(InvalidInput, match="cannot be read by this role: grant it SELECT"):
        adoption(own, "orders", "customer", ["id"])
    run(engine, f"GRANT ALL ON orders TO {name}")
    with pytest.raises(InvalidInput, match="the rights of both owners"):
        adoption(own, "orders", "customer", ["id"])
    run(engine, f"GRANT SELECT ON taskbridge.adopted, taskbridge.records TO {name}")
    assert adoption_statements(adoption(own, "orders", "customer", ["id"], needs_rights=False))
    adopted(engine)
    run(own, FOUR, "UPDATE orders SET note = 'x' WHERE id = 1", "DELETE FROM orders WHERE id = 2", "TRUNCATE orders")
    with pytest.raises(ProgrammingError, match="permission denied"):
        run(own, "UPDATE taskbridge.records SET deleted = true")
    assert Reader(engine).seen() == {"acme": ["-1", "-2"], "bolt": ["-3"]}


def test_a_role_that_row_level_security_binds_from_now_on_sees_no_row_as_deleted(engine: Engine, role: Role) -> None:
    name, own = role
    run(engine, ORDERS, "ALTER TABLE orders ENABLE ROW LEVEL SECURITY", f"ALTER ROLE {name} BYPASSRLS")
    adopted(engine)
    run(engine, FOUR)
    run(engine, f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {name}")
    run(engine, f"GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA taskbridge TO {name}")
    reader = Reader(own)
    assert reader.seen(["bolt"]) == {"bolt": ["3"]}
    # Unlike a change of the table, this changes nothing by which a process finds that it has to look again.
    run(engine, f"ALTER ROLE {name} NOBYPASSRLS")
    with pytest.raises(Unread, match="row-level security"):
        reader.seen()
    with pytest.raises(InvalidInput, match="row-level security"):
        adoption(own, "orders", "customer", ["id"], needs_rights=False)
    assert Reader(engine).seen() == {"acme": ["1", "2"]}


def test_a_writer_that_does_not_end_keeps_nobody_waiting_and_nothing_half_done(engine: Engine) -> None:
    run(engine, ORDERS)
    wanted = adoption(engine, "orders", "customer", ["id"])
    with engine.connect() as writer:
        writer.exec_driver_sql("INSERT INTO orders VALUES (1, 'acme', 1, 'a')")
        with ThreadPoolExecutor(1) as pool:
            trying = pool.submit(adopt, engine, wanted, 3.0)
            wait_until(lambda: waiting(engine), "it waits for the writer")
            # Whoever comes after it has to wait for it.
            run(engine, "SET statement_timeout = '4s'; INSERT INTO orders VALUES (2, 'acme', 2, 'b')")
            with pytest.raises(Unavailable, match="in use by long transactions"):
                trying.result(30)
        writer.commit()
    assert rows(engine, "SELECT FROM taskbridge.adopted") == []
    assert adopt(engine, wanted, timeout=0.3)


@pytest.mark.parametrize("adopts", [True, False])
def test_users_of_many_partitions_keep_nobody_waiting_for_the_sum_of_them(engine: Engine, adopts: bool) -> None:
    number = 20
    run(
        engine,
        f"{ORDERS} PARTITION BY LIST (id)",
        *(f"CREATE TABLE part_{at:02} PARTITION OF orders FOR VALUES IN ({at})" for at in range(number)),
    )
    wanted = adoption(engine, "orders", "customer", ["id"])
    if not adopts:
        adopt(engine, wanted)
    waited_for = "SELECT relation::regclass::text FROM pg_locks WHERE NOT granted AND relation IS NOT NULL"
    with ExitStack() as users, ThreadPoolExecutor(2) as pool:
        held = {f"part_{at:02}": users.enter_context(engine.connect()) for at in range(number)}
        for at, (part, user) in enumerate(held.items()):
            # An insert locks the parent too, which `unadopt` takes first.
            use = f"INSERT INTO {part} VALUES ({at}, 'acme', 1, 'a')" if adopts else f"SELECT FROM {part}"  # noqa: S608
            user.exec_driver_sql(use)
        over: list[str] = []
        done = threading.Event()

        def commit_what_is_waited_for() -> None:
            while not done.is_set():
                for (part,) in rows(engine, waited_for):
                    if part in held and part not in over:
                        done.wait(0.2 * TIME_FACTOR)
                        held[part].commit()
                        over.append(part)
            for user in held.values():
                user.commit()

        committing = pool.submit(commit_what_is_waited_for)
        trying = pool.submit(lambda: adopt(engine, wanted, 30) if adopts else unadopt(engine, "orders", 30))
        wait_until(lambda: over, "the first was waited for")
        try:
            run(engine, f"SET LOCAL statement_timeout = '{1.5 * TIME_FACTOR}s'; DELETE FROM {over[0]}")  # noqa: S608 - our name
        finally:
            done.set()
            committing.result(60)
            trying.result(60)


def test_a_table_is_adopted_and_given_up_in_a_transaction_of_the_caller_s_whose_settings_stay(engine: Engine) -> None:
    run(engine, ORDERS)
    names = ("lock_timeout", "statement_timeout", "search_path")
    settings = "SELECT " + ", ".join(f"current_setting('{name}')" for name in names)
    with engine.connect() as writer, engine.connect() as connection, ThreadPoolExecutor(1) as pool:
        connection.exec_driver_sql("SET LOCAL lock_timeout = '7s'; SET LOCAL statement_timeout = '70s'")
        before = connection.exec_driver_sql(settings).one()
        writer.exec_driver_sql("INSERT INTO orders VALUES (1, 'acme', 1, 'a')")
        wanted = adoption(connection, "orders", "customer", ["id"], source="orders")
        with pytest.raises(Unavailable, match="in use by long transactions"):
            adopt(connection, wanted, 0.2)
        with pytest.raises(InvalidInput, match="has no column 'nobody'"):
            adoption(connection, "orders", "nobody", ["id"], source="orders")
        trying = pool.submit(adopt, connection, wanted)
        wait_until(lambda: waiting(engine), "it waits for the writer")
        writer.commit()
        trying.result(30)
        assert connection.exec_driver_sql(settings).one() == before
        # nobody else sees it before the caller commits
        assert rows(engine, "SELECT FROM taskbridge.adopted") == []
        connection.commit()
    run(engine, "INSERT INTO orders VALUES (2, 'acme', 2, 'b')")
    assert Reader(engine).seen() == {"acme": ["2"]}
    assert [due.source for due in backfills_due(engine)] == ["orders"], "one row was there before"
    with engine.begin() as connection:
        before = connection.exec_driver_sql(settings).one()
        unadopt(connection, "orders")
        assert connection.exec_driver_sql(settings).one() == before
    assert rows(engine, "SELECT FROM pg_trigger WHERE tgname LIKE 'taskbridge%'") == []


def test_what_is_printed_can_be_run_by_psql_once_and_again(engine: Engine) -> None:
    run(engine, ORDERS)
    wanted = adoption(engine, "orders", "customer", ["id"])
    text = "".join(f"{one};\n" for one in adoption_statements(wanted))
    url = engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    for single in ([], ["-1"]):
        subprocess.run([PSQL, *single, "-qX", "-v", "ON_ERROR_STOP=1", url], input=text, text=True, check=True)
    assert trigger_faults(engine, wanted) == []
    assert not adopt(engine, wanted)
    run(engine, FOUR)
    assert Reader(engine).seen() == {"acme": ["1", "2"], "bolt": ["3"]}


def test_unadopting_ends_records_and_what_was_recorded_is_still_read(engine: Engine, reader: Reader) -> None:
    run(engine, "INSERT INTO orders VALUES (5, 'acme', 5, 'e')")
    run(engine, "INSERT INTO taskbridge.pipelines (pipeline, source) VALUES ('orders', 'orders')")
    left = unadopt(engine, "orders")
    assert left == ("public.orders", ["orders"])
    run(engine, "INSERT INTO orders VALUES (6, 'acme', 6, 'f')", "TRUNCATE orders")
    run(engine, "INSERT INTO orders VALUES (5, 'acme', 5, 'e')")
    assert reader.seen() == {"acme": ["5"]}
    assert rows(engine, "SELECT FROM pg_trigger WHERE tgname LIKE 'taskbridge%'") == []
    assert rows(engine, "SELECT FROM pg_proc WHERE proname LIKE 'adopted%'") == []
    with pytest.raises(InvalidInput, match="there are: orders"):
        unadopt(engine, "sales")
    adopted(engine)
    run(engine, "UPDATE orders SET note = 'x'")
    assert reader.seen() == {"acme": ["5"]}


@pytest.mark.usefixtures("reader")
def test_triggers_go_while_somebody_has_locked_the_records(engine: Engine) -> None:
    with engine.begin() as locking:
        locking.exec_driver_sql("LOCK TABLE taskbridge.records")
        assert unadopt(engine, "orders", timeout=3).table == "public.orders"
        assert rows(engine, "SELECT FROM pg_trigger WHERE tgname LIKE 'taskbridge%'") == []


def test_a_row_that_json_cannot_hold_costs_no_other(engine: Engine, reader: Reader) -> None:
    run(engine, "ALTER TABLE orders ADD COLUMN raw json", 'UPDATE orders SET raw = \'{"a": "\\u0000"}\' WHERE id = 1')
    with pytest.raises(Unread, match="unsupported Unicode"):
        reader.records("acme")
    # Where it is looked for without documents, as after a failure, it can be told from the others.
    assert [one.external_id for one in reader.claim(died=True).records] == ["1"]


@pytest.mark.parametrize("keys", [("id",), ("region", "id"), ("at",)])
def test_a_backfill_that_is_cut_twice_records_each_row_once(engine: Engine, keys: tuple[str, ...]) -> None:
    run(
        engine,
        "CREATE TABLE orders (id int NOT NULL, region text NOT NULL, customer text, at timestamptz NOT NULL UNIQUE, "
        "PRIMARY KEY (region, id))",
        "INSERT INTO orders SELECT n, 'r' || n % 3, 'acme', timestamptz '2026-01-01 01:00:00.5+02' "
        "+ n * interval '1 h' FROM generate_series(1, 20) n",
        "INSERT INTO orders VALUES (98, 'r0', NULL, 'infinity'), (99, 'r9', ' x', '-infinity')",
        "CREATE UNIQUE INDEX ON orders (id)",
    )
    found = adopted(engine, "orders", "customer", *keys)
    run(engine, "UPDATE orders SET customer = 'bolt' WHERE id = 7", "DELETE FROM orders WHERE id = 3")
    before = rows(engine, "SELECT tenant, key, revision FROM taskbridge.records ORDER BY revision")
    assert backfilled(engine, found, 2) == [3, 6]
    run(engine, "INSERT INTO orders VALUES (30, 'r0', 'acme', '2027-01-01'), (0, 'r0', 'acme', '2025-01-01')")
    assert backfilled(engine, found, 1) == [9]
    total = rows(engine, "SELECT count(*) FROM orders")[0][0]
    # What came meanwhile may lie before the place or after it.
    assert total - 2 <= backfilled(engine, found)[-1] <= total
    assert len(backfilled(engine, found)) == 1
    after = rows(engine, "SELECT tenant, key, revision FROM taskbridge.records ORDER BY revision")
    assert after[: len(before)] == before
    assert len(after) == len({one[:2] for one in after})
    reader = Reader(engine)
    live = [one for one in reader.records("acme") if not one.deleted]
    assert sorted(int(one.document["id"]) for one in live) == sorted({*range(21), 30} - {3, 7})
    assert rows(engine, "SELECT count(*) FROM taskbridge.records WHERE tenant = ''") == [(1,)]


TROUBLES = {
    "dropped": ("DROP TRIGGER taskbridge_orders_update ON orders", "has no trigger taskbridge_orders_update"),
    "disabled": (
        "ALTER TABLE orders DISABLE TRIGGER taskbridge_orders_delete",
        "orders_delete of public.orders is off",
    ),
    "not always": (
        "ALTER TABLE orders ENABLE TRIGGER taskbridge_orders_insert",
        "orders_insert of public.orders does not fire where rows are replicated",
    ),
    "column renamed": ("ALTER TABLE orders RENAME customer TO client", "customer is called client now"),
    "column dropped": ("ALTER TABLE orders DROP customer", "has no column 'customer'"),
    "type changed": ("ALTER TABLE orders ALTER customer TYPE date USING NULL", "to date"),
    "index dropped": ("ALTER TABLE orders DROP CONSTRAINT orders_pkey", "two rows could share one record"),
    "table dropped": ("DROP TABLE orders", "the table of orders was dropped"),
}


def test_what_was_changed_under_an_adopted_table_is_found(engine: Engine) -> None:
    for at, (statement, text) in enumerate(TROUBLES.values()):
        table = f"orders{at}"
        run(engine, ORDERS.replace("orders", table))
        adopted(engine, table)
        assert check_adoptions(engine)[table] == []
        run(engine, statement.replace("orders", table))
        wrong = check_adoptions(engine)[table]
        assert any(text.replace("orders", table) in fault.what for fault in wrong), (statement, wrong)
        assert all(fault.remedy and not fault.is_recorded for fault in wrong)


@pytest.mark.parametrize("chosen", [False, True], ids=["sends again", "chooses not to"])
def test_that_changes_may_have_been_missed_is_told_until_somebody_sends_the_rows_again_or_chooses_not_to(
    engine: Engine, reader: Reader, chosen: bool
) -> None:
    for statement in (
        "ALTER TABLE orders DISABLE TRIGGER USER",
        "ALTER TABLE orders ENABLE TRIGGER taskbridge_orders_delete",
        "DROP TRIGGER taskbridge_orders_update ON orders",
    ):
        run(engine, statement)
        ((_, remedy, _), *_) = check_adoptions(engine)["orders"]
        assert "may have been missed" in remedy
        assert remedy.endswith("--source orders --again")
        adopted(engine)
        # Somebody adopts a table with triggers that fire: nothing more was missed.
        adopted(engine, watched=["note"])
        found = adopted(engine)
        ((wrong, _, _),) = check_adoptions(engine)["orders"]
        assert wrong == "changes may have been missed, and no backfill has been started since"
        if chosen:
            assert not adopt(engine, found, from_now_on=True)
        else:
            assert backfilled(engine, found)[-1] == 4
        assert reader.seen() == ({} if chosen else {"acme": ["1", "2"], "bolt": ["3"]})
        assert check_adoptions(engine) == {"orders": []}


@pytest.mark.usefixtures("reader")
@pytest.mark.parametrize("level", ["read committed", "serializable"])
def test_a_trigger_that_is_turned_off_while_a_table_is_adopted_again_is_told(engine: Engine, level: str) -> None:
    run(engine, f"ALTER DATABASE \"{engine.url.database}\" SET default_transaction_isolation = '{level}'")
    engine.dispose()
    with engine.connect() as shop, ThreadPoolExecutor(1) as pool:
        shop.exec_driver_sql("ALTER TABLE orders DISABLE TRIGGER USER")
        again = pool.submit(adopted, engine, watched=["note"])
        wait_until(lambda: waiting(engine), "it waits for the table")
        shop.commit()
        again.result(30)
    assert [fault.is_recorded for fault in check_adoptions(engine)["orders"]] == [True]


@pytest.mark.parametrize("partitioned", [False, True])
def test_a_session_that_wrote_before_is_seen_after_columns_have_come_changed_and_gone(
    engine: Engine, partitioned: bool
) -> None:
    run(engine, f"{ORDERS} PARTITION BY RANGE (id)" if partitioned else ORDERS)
    if partitioned:
        run(engine, "CREATE TABLE orders_a PARTITION OF orders FOR VALUES FROM (0) TO (100)")
    adopted(engine)
    reader = Reader(engine)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as writer:
        writer.exec_driver_sql("INSERT INTO orders VALUES (1, 'acme', 1, 'a')")
        for number in range(8):  # A plan for any values is made after the fifth.
            writer.exec_driver_sql(f"UPDATE orders SET note = 'b{number}'")  # noqa: S608 - a number
        assert reader.keys("acme") == ["1"]
        for change, write in {
            "ADD COLUMN status text": "UPDATE orders SET status = 'paid'",
            "ALTER COLUMN note TYPE integer USING 1": "UPDATE orders SET note = 2",
            "DROP COLUMN total": "UPDATE orders SET status = 'sent'",
            "RENAME COLUMN status TO stands": "UPDATE orders SET stands = 'back'",
            "ADD COLUMN at timestamptz": "UPDATE orders SET at = now()",
        }.items():
            run(engine, f"ALTER TABLE orders {change}")
            writer.exec_driver_sql(write)
            assert reader.keys("acme") == ["1"], change
            writer.exec_driver_sql("UPDATE orders SET note = note")
            assert reader.keys("acme") == [], "nothing has changed"
        writer.exec_driver_sql("DELETE FROM orders")
        assert reader.keys("acme") == ["-1"]


def test_partitions_that_came_later_or_were_detached_can_be_emptied(engine: Engine) -> None:
    part = "CREATE TABLE {} PARTITION OF orders FOR VALUES FROM ({}) TO ({})"
    run(engine, f"{ORDERS} PARTITION BY RANGE (id)", part.format("orders_a", 0, 100))
    found = adopted(engine)
    run(engine, part.format("orders_b", 100, 200))
    again = adoption(engine, "orders", "customer", ["id"])
    assert trigger_faults(engine, again) == ["public.orders_b has no trigger taskbridge_orders_truncate"]
    assert [adopt(engine, again), adopt(engine, again)] == [True, False]
    assert found.definition == again.definition
    reader = Reader(engine)
    run(
        engine,
        "INSERT INTO orders VALUES (1, 'acme', 1, 'a'), (101, 'acme', 1, 'b')",
        "ALTER TABLE orders DETACH PARTITION orders_a",
        f"{ORDERS.replace('orders', 'archive')} PARTITION BY RANGE (id)",
        "ALTER TABLE archive ATTACH PARTITION orders_a FOR VALUES FROM (0) TO (100)",
        "INSERT INTO archive VALUES (2, 'acme', 2, 'c')",
        "TRUNCATE archive",
    )
    assert reader.keys("acme") == ["-1", "101"]
    run(engine, "TRUNCATE orders")
    assert reader.keys("acme") == ["-101"]


TYPES: list[tuple[str, str, str, dict[str, list[str]] | None]] = [
    ("int", "7", "bigint", {"7": ["-1", "2", "3"]}),
    ("int", "7", "text", {"7": ["-1", "2", "3"]}),
    ("int", "7", "date USING '2026-02-03'", None),
    ("bool", "true", "text USING repeat('x', 300)", {"true": []}),
    ("timestamptz", "'2026-02-03'", "text USING 'when'", None),
    ("date", "'2026-02-03'", "bytea USING '\\x00'", None),
    ("uuid", "'5c1f2d1e-0a52-4a3c-9c6c-1f1d7f0a0001'", "jsonb USING '{}'", None),
]
"""The type of a tenant, a value, another type, and the keys that are read after the change; None: the source stops."""


@pytest.mark.parametrize(("watched", "partitioned"), [((), False), (("note",), True)], ids=["plain", "partitioned"])
def test_no_write_fails_when_a_type_has_changed_in_any_session(
    engine: Engine, watched: tuple[str, ...], partitioned: bool
) -> None:
    for at, (kind, value, change, seen) in enumerate(TYPES):
        # given a session that has written before
        table = f"orders{at}"
        columns = f"id int PRIMARY KEY, customer {kind}, note text"
        run(engine, f"CREATE TABLE {table} ({columns}){' PARTITION BY RANGE (id)' * partitioned}")
        if partitioned:
            run(engine, f"CREATE TABLE part{at} PARTITION OF {table} DEFAULT")
        adopted(engine, table, watched=watched)
        reader = Reader(engine, table, table)
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as shop:
            shop.exec_driver_sql(f"INSERT INTO {table} SELECT n, {value}, 'a' FROM generate_series(1, 2) n")  # noqa: S608
            shop.exec_driver_sql(f"UPDATE {table} SET note = 'b'")  # noqa: S608 - our name
            for tenant in seen or {}:
                assert reader.keys(tenant) == ["1", "2"]
            change_type = f"ALTER TABLE {table} ALTER customer TYPE {change}"
            run(engine, change_type, f"ALTER TABLE {table} ALTER note TYPE varchar(9)")
            # when it goes on, then it can, though what it writes may be no tenant
            for statement in (
                f"UPDATE {table} SET note = 'c' WHERE id = 2",  # noqa: S608 - our name
                f"INSERT INTO {table} SELECT 3, customer, 'a' FROM {table} LIMIT 1",  # noqa: S608 - our name
                f"DELETE FROM {table} WHERE id = 1",  # noqa: S608 - our name
            ):
                shop.exec_driver_sql(statement)
            for tenant, keys in (seen or {}).items():
                assert reader.keys(tenant) == keys, change
            if seen is None:
                with pytest.raises(Unread, match=r"is stopped|is of type"):
                    reader.keys("7")
                assert check_adoptions(engine)[table]
            shop.exec_driver_sql(f"TRUNCATE {table}")
