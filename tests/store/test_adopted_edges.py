"""Adopted tables where they are unusual: names, types, rights, and what is changed under them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError, ProgrammingError

from taskbridge.errors import InvalidInput
from taskbridge.store import (
    adopt,
    adoption,
    backfill,
    begin_again,
    check_adoptions,
    connect,
    migrate,
    unadopt,
)
from tests.store.adopting import ORDERS, Reader, adopted, backfilled, rows, run

TRAP = (
    "CREATE TYPE shop.trap AS (a int)",
    "CREATE TABLE shop.caught (who text)",
    (
        "CREATE FUNCTION shop.spring(shop.trap) RETURNS {0} LANGUAGE plpgsql AS "
        "$$ BEGIN INSERT INTO shop.caught VALUES (current_user); RETURN {1}; END $$"
    ),
    "CREATE CAST (shop.trap AS {0}) WITH FUNCTION shop.spring(shop.trap) AS IMPLICIT",
)
"""A type whose cast to another notes whose rights it has."""


def test_nobody_else_can_put_the_function_on_a_table_of_his_own(engine: Engine, role: tuple[str, Engine]) -> None:
    _, own = role
    run(engine, ORDERS)
    adopted(engine)
    run(own, "CREATE TABLE shop.mine (id int, customer text)")
    trigger = (
        "CREATE TRIGGER t AFTER INSERT ON shop.mine REFERENCING NEW TABLE AS new_rows "
        "FOR EACH STATEMENT EXECUTE FUNCTION taskbridge.adopted_orders()"
    )
    with pytest.raises(ProgrammingError, match="permission denied for function"):
        run(own, trigger)
    # Who may, as the owner of the schema, gets no records by it.
    run(engine, trigger)
    with pytest.raises(DBAPIError, match=r"shop\.mine is not the table that was adopted as the source orders"):
        run(own, "INSERT INTO shop.mine VALUES (99, 'victim')")
    assert rows(engine, "SELECT FROM taskbridge.records") == []


@pytest.mark.parametrize("kind", ["text", "int", "timestamptz"])
def test_the_owner_of_the_table_does_not_get_the_rights_of_who_adopted_it(
    engine: Engine, role: tuple[str, Engine], kind: str
) -> None:
    _, own = role
    run(own, f"CREATE TABLE shop.orders (id int PRIMARY KEY, customer {kind})")
    adopted(engine, "shop.orders")
    run(own, *(one.format(kind, "NULL") for one in TRAP))
    if kind != "text":
        run(
            own,
            "CREATE FUNCTION shop.also(shop.trap) RETURNS text LANGUAGE plpgsql AS "
            "$$ BEGIN INSERT INTO shop.caught VALUES (current_user); RETURN 'x'; END $$",
            "CREATE CAST (shop.trap AS text) WITH FUNCTION shop.also(shop.trap)",
        )
    run(own, "ALTER TABLE shop.orders ALTER customer TYPE shop.trap USING NULL")
    run(own, "INSERT INTO shop.orders VALUES (1, ROW(1))", "UPDATE shop.orders SET id = 2", "TRUNCATE shop.orders")
    assert rows(engine, "SELECT FROM shop.caught") == []


@pytest.mark.parametrize("kind", ["int", "text"])
def test_a_statement_that_changes_a_row_twice_does_not_fail(engine: Engine, kind: str) -> None:
    run(
        engine,
        "CREATE TABLE people (id int PRIMARY KEY)",
        f"CREATE TABLE orders (id int PRIMARY KEY, customer {kind}, bill int REFERENCES people ON DELETE SET NULL, "
        "ship int REFERENCES people ON DELETE SET NULL)",
        "CREATE TABLE chain (id int PRIMARY KEY, customer int, above int REFERENCES chain ON UPDATE CASCADE)",
    )
    adopted(engine)
    adopted(engine, "chain")
    run(engine, "INSERT INTO people VALUES (1)", "INSERT INTO orders VALUES (1, '7', 1, 1)")
    run(engine, "INSERT INTO chain VALUES (1, 7, 1), (2, 7, 1)")
    reader, chain = Reader(engine), Reader(engine, "chain", "chain")
    assert (reader.keys("7"), chain.keys("7")) == (["1"], ["1", "2"])
    run(engine, "DELETE FROM people", "UPDATE chain SET id = 3 WHERE id = 1")
    assert (reader.keys("7"), chain.keys("7")) == (["1"], ["-1", "2", "3"])


ALIASES = (
    "n o c s u w r t d p q a v one two at key gone tenant source muted revision reason deleted document text "
    "json stored wanted watched old new new_rows old_rows excluded records adopted page places written "
    "taskbridge found tg_op tg_relid size counts external_id xid "
    "ours keep_ids ignored whole named typed number place attname "
)
NAMES = ALIASES.split()


@pytest.mark.parametrize(("kind", "partitioned"), [("int", False), ("pair", True)])
def test_a_column_may_have_any_name(engine: Engine, kind: str, partitioned: bool) -> None:
    columns = ", ".join(f'"{name}" {kind}' for name in NAMES)
    run(
        engine,
        "CREATE TYPE pair AS (a int, tenant int)",
        f"CREATE TABLE orders (id int PRIMARY KEY, customer int, note text, {columns})"
        + (" PARTITION BY RANGE (id)" if partitioned else ""),
    )
    if partitioned:
        run(engine, "CREATE TABLE part PARTITION OF orders DEFAULT")
    found, reader = adopted(engine), Reader(engine)
    on = [
        f"ALTER TABLE {table} ENABLE ALWAYS TRIGGER {trigger}"
        for table, trigger in rows(
            engine, "SELECT tgrelid::regclass, tgname FROM pg_trigger WHERE tgname LIKE 'taskbridge%'"
        )
    ]
    value = "1" if kind == "int" else "ROW(1, 1)"
    run(engine, "ALTER TABLE orders DISABLE TRIGGER USER", "INSERT INTO orders (id, customer) VALUES (9, 7)")
    run(engine, *on)
    run(engine, f"INSERT INTO orders VALUES (1, 7, 'a', {', '.join([value] * len(NAMES))})")  # noqa: S608 - ours
    # It was empty when it was adopted, so its backfill was done.
    begin_again(engine, "orders")
    assert [page.rows for page in backfill(engine, found)] == [2, 2]
    assert reader.keys("7") == ["1", "9"]
    run(engine, "UPDATE orders SET note = 'b' WHERE id = 1")
    assert reader.keys("7") == ["1"]
    run(engine, *(f'UPDATE orders SET "{name}" = "{name}"' for name in NAMES))  # noqa: S608 - ours
    assert reader.keys("7") == []
    run(engine, "DELETE FROM orders WHERE id = 9", "TRUNCATE orders")
    assert reader.keys("7") == ["-1", "-9"]


@pytest.mark.parametrize("name", ["n", "o", "muted", "key", "tenant"])
def test_tenant_and_key_may_have_any_name(engine: Engine, name: str) -> None:
    run(engine, f"CREATE TABLE orders ({name} int PRIMARY KEY, {name}2 int)")
    adopted(engine, "orders", f"{name}2", name)
    reader = Reader(engine)
    run(engine, "INSERT INTO orders VALUES (1, 7)", f"UPDATE orders SET {name} = 2", "DELETE FROM orders")  # noqa: S608
    assert reader.keys("7") == ["-1", "-2"]


@pytest.mark.parametrize("kind", ["char(9)", 'text COLLATE "POSIX"', "code"])
def test_a_row_is_found_by_its_index(engine: Engine, kind: str) -> None:
    run(
        engine,
        "CREATE DOMAIN code AS text NOT NULL",
        f"CREATE TABLE orders (id {kind} PRIMARY KEY, customer {kind})",
        "INSERT INTO orders SELECT 'o' || n, 'acme' FROM generate_series(1, 20000) n",
        "ANALYZE orders",
    )
    adopted(engine)
    run(
        engine, "UPDATE orders SET customer = 'bolt' WHERE id IN ('o1', 'o777')", "DELETE FROM orders WHERE id = 'o777'"
    )
    reader, scans = Reader(engine), "SELECT seq_scan FROM pg_stat_user_tables WHERE relname = 'orders'"
    run(engine, "SELECT pg_stat_force_next_flush()")
    before = rows(engine, scans)
    assert reader.seen(["none", "acme", "bolt"]) == {"acme": ["-o1", "-o777"], "bolt": ["-o777", "o1"]}
    reader.cursors._engine.dispose()
    run(engine, "SELECT pg_stat_force_next_flush()")
    assert rows(engine, scans) == before


def test_a_transaction_that_began_before_the_adoption_can_write(engine: Engine) -> None:
    run(engine, ORDERS)
    with engine.connect().execution_options(isolation_level="REPEATABLE READ") as writer:
        writer.exec_driver_sql("SELECT count(*) FROM pg_class")
        adopted(engine)
        writer.exec_driver_sql("INSERT INTO orders VALUES (1, 'acme', 1, 'a')")
        writer.commit()
    assert Reader(engine).seen() == {"acme": ["1"]}


def test_what_is_pending_of_a_table_that_was_given_up_and_dropped_is_gone(engine: Engine) -> None:
    run(engine, ORDERS)
    adopted(engine)
    run(engine, "INSERT INTO orders VALUES (1, 'acme', 1, 'a'), (2, 'bolt', 2, 'b')")
    reader = Reader(engine)
    assert reader.seen(["acme"]) == {"acme": ["1"]}
    run(engine, "UPDATE orders SET note = 'x'", "DROP TABLE orders")
    unadopt(engine, "orders")
    assert reader.seen() == {"acme": ["-1"], "bolt": ["-2"]}
    run(engine, ORDERS)
    adopted(engine)
    run(engine, "INSERT INTO orders VALUES (1, 'acme', 1, 'a')")
    assert reader.seen() == {"acme": ["1"]}


def test_a_table_that_was_swapped_by_renaming_is_found_and_can_be_adopted(engine: Engine) -> None:
    run(engine, ORDERS)
    adopted(engine)
    run(engine, "ALTER TABLE orders RENAME TO former")
    assert check_adoptions(engine) == {"orders": []}
    run(engine, ORDERS)
    with pytest.raises(InvalidInput, match=r"that of the table public\.former: .* or run `taskbridge unadopt orders`"):
        adoption(engine, "orders", "customer", ["id"])
    ((wrong, remedy, _),) = check_adoptions(engine)["orders"]
    assert wrong.endswith("is called public.former now; changes of public.orders are not recorded")
    assert remedy.startswith("run: taskbridge unadopt orders && taskbridge adopt public.orders --tenant customer")
    unadopt(engine, "orders")
    adopted(engine)
    # The former table's rows have no record of their end.
    ((wrong, _, is_recorded),) = check_adoptions(engine)["orders"]
    assert (wrong, is_recorded) == ("changes may have been missed, and no backfill has been started since", True)
    run(engine, "INSERT INTO orders VALUES (1, 'acme', 1, 'a')", "INSERT INTO former VALUES (2, 'acme', 2, 'b')")
    assert Reader(engine).seen() == {"acme": ["1"]}


OF_SHOP = ORDERS.replace("orders", "shop.orders", 1)
SWAPS = {
    "schema": ("ALTER SCHEMA shop RENAME TO former", "CREATE SCHEMA shop", OF_SHOP),
    "table": ("ALTER TABLE shop.orders RENAME TO former", OF_SHOP),
    "moved": ("CREATE SCHEMA former", "ALTER TABLE shop.orders SET SCHEMA former", OF_SHOP),
}


@pytest.mark.parametrize(("how", "within"), [("schema", "read_batch"), ("table", "documents"), ("moved", None)])
def test_another_table_of_the_name_is_never_read_for_the_adopted_one(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, how: str, within: str | None
) -> None:
    run(engine, "CREATE SCHEMA shop", OF_SHOP)
    adopted(engine, "shop.orders")
    large = "(SELECT string_agg(md5(n::text || at), '') FROM generate_series(1, 400) at)"
    run(engine, f"INSERT INTO shop.orders SELECT n, 'acme', 1, {large} FROM generate_series(1, 3) n")  # noqa: S608
    reader = Reader(engine)
    assert len(reader.records("acme", 1)) == 1
    reading, left = reader.cursors._reading, [how]

    def swap() -> None:
        run(engine, *SWAPS[left.pop()])

    def swap_before(name: str, *others: Any) -> str:
        text = reading(name, *others)
        if name == within and left:
            swap()
        return text

    monkeypatch.setattr(reader.cursors, "_reading", swap_before)
    if within is None:
        swap()
    found = [*reader.records("acme"), *reader.records("acme")]
    assert left == []
    assert [(one.external_id, one.deleted, "note" in one.document) for one in found] == [
        ("2", False, True),
        ("3", False, True),
    ]


def test_a_backfill_takes_no_rows_of_another_table_of_the_name(engine: Engine) -> None:
    run(engine, "CREATE SCHEMA shop", OF_SHOP, "INSERT INTO shop.orders SELECT n, 'acme' FROM generate_series(1, 3) n")
    pages = backfill(engine, adopted(engine, "shop.orders"), 2)
    assert next(pages).rows == 2
    run(engine, *SWAPS["schema"], "INSERT INTO shop.orders SELECT n, 'acme' FROM generate_series(3, 9) n")
    with pytest.raises(InvalidInput, match=r"shop\.orders is called former\.orders since the backfill began"):
        next(pages)
    assert rows(engine, "SELECT count(*) FROM taskbridge.records") == [(2,)]


def test_two_deployments_adopt_one_table(engine: Engine, postgres_url: str) -> None:
    run(engine, ORDERS)
    other = connect(postgres_url, "second_one")
    migrate(other)
    adopted(engine)
    adopted(other)
    assert check_adoptions(engine) == check_adoptions(other) == {"orders": []}
    run(engine, "INSERT INTO orders VALUES (1, 'acme', 1, 'a')")
    one, two = Reader(engine), Reader(other)
    assert one.seen() == two.seen() == {"acme": ["1"]}
    # What one's handler writes back the other has to see.
    run(engine, "UPDATE orders SET note = 'b'")
    one.handle("acme", one.claim(), "UPDATE orders SET note = 'sent'")
    assert (one.seen(), two.seen()) == ({}, {"acme": ["1"]})
    unadopt(other, "orders")
    assert check_adoptions(engine) == {"orders": []}
    other.dispose()


@pytest.mark.parametrize("change", ["ADD PRIMARY KEY (seq, id)", "ADD PRIMARY KEY (seq)", "ALTER id TYPE text"])
def test_a_backfill_begins_anew_where_its_order_has_changed(engine: Engine, change: str) -> None:
    run(
        engine,
        "CREATE TABLE orders (id int NOT NULL, seq int NOT NULL, customer int, CONSTRAINT one PRIMARY KEY (id))",
        "INSERT INTO orders SELECT n, 1000 - n, 7 FROM generate_series(1, 100) n",
    )
    assert next(backfill(engine, adopted(engine, "orders", "customer", "id", "seq"), 60)).rows == 60
    if "KEY" in change:
        run(engine, "ALTER TABLE orders DROP CONSTRAINT one")
    run(engine, f"ALTER TABLE orders {change}")
    found = adoption(engine, "orders", "customer", ["id", "seq"])
    adopt(engine, found)
    assert backfilled(engine, found, size=60)[-1] == 100
    assert len(Reader(engine).keys("7")) == 100


def test_two_that_adopt_at_once_take_turns(engine: Engine) -> None:
    run(engine, ORDERS)
    wanted = adoption(engine, "orders", "customer", ["id"])
    barrier = threading.Barrier(3)

    def take() -> bool:
        barrier.wait(30)
        return adopt(engine, wanted, 20)

    for _ in range(5):
        with ThreadPoolExecutor(3) as pool:
            assert any(one.result(60) for one in [pool.submit(take) for _ in range(3)])
        unadopt(engine, "orders")


FUNCTIONS = ("last_id", "muted_tenant", "next_id", "next_revision", "owns_records", "shown", "unfit")
LOST = {
    "USAGE on the schema taskbridge": "USAGE ON SCHEMA taskbridge",
    **{f"{right} on taskbridge.records": f"{right} ON taskbridge.records" for right in ("SELECT", "INSERT", "UPDATE")},
    "SELECT on taskbridge.adopted": "SELECT ON taskbridge.adopted",
    **{f"EXECUTE on taskbridge.{name}(": f"EXECUTE ON FUNCTION taskbridge.{name}" for name in FUNCTIONS},
    "USAGE on the schema shop": "USAGE ON SCHEMA shop",
    "SELECT on shop.orders": "SELECT ON shop.orders",
}
"""What a role needs for the function of a table that it has adopted, and how that is granted."""


def test_who_adopts_is_no_superuser_and_each_right_that_he_has_lost_is_found(
    engine: Engine, role: tuple[str, Engine]
) -> None:
    name, own = role
    run(own, "CREATE TABLE shop.orders (id int PRIMARY KEY, customer text)")
    functions = ", ".join(f"taskbridge.{name}" for name in FUNCTIONS)
    run(
        engine,
        f"REVOKE EXECUTE ON FUNCTION {functions} FROM PUBLIC",
        f"GRANT CREATE ON SCHEMA taskbridge TO {name}",
        f"GRANT INSERT, UPDATE ON taskbridge.adopted TO {name}",
    )
    with pytest.raises(InvalidInput, match=r"no SELECT on taskbridge\.adopted, no .*, no EXECUTE on taskbridge\.unfit"):
        adoption(own, "shop.orders", "customer", ["id"])
    run(engine, *(f"GRANT {one} TO {name}" for one in LOST.values()))
    adopted(own, "shop.orders")
    with engine.begin() as connection:
        connection.exec_driver_sql("INSERT INTO shop.orders VALUES (1, 'acme'), (9, ' bad')")
        assert connection.exec_driver_sql("SHOW taskbridge.keep_ids").scalar_one() == ""
    assert Reader(engine).seen() == {"acme": ["1"]}
    assert check_adoptions(engine) == {"orders": []}
    for what, right in LOST.items():
        run(engine, f"REVOKE {right} FROM {name}")
        engine.dispose()
        with pytest.raises(DBAPIError, match="permission denied"):
            run(engine, "INSERT INTO shop.orders VALUES (2, 'acme'), (8, ' bad'); TRUNCATE shop.orders")
        ((said, remedy, _),) = check_adoptions(engine)["orders"]
        assert said.startswith(f"the role {name}, which adopted it, has no {what}")
        assert remedy == "grant it that"
        run(engine, f"GRANT {right} TO {name}")
    assert check_adoptions(engine) == {"orders": []}


def test_the_next_owner_of_a_partitioned_table_is_found_to_make_no_partitions_until_it_is_adopted_again(
    engine: Engine, role: tuple[str, Engine]
) -> None:
    name, own = role
    run(
        engine,
        "CREATE TABLE shop.orders (id int PRIMARY KEY, customer text) PARTITION BY RANGE (id)",
        "CREATE TABLE shop.low PARTITION OF shop.orders FOR VALUES FROM (0) TO (100) PARTITION BY RANGE (id)",
    )
    adopted(engine, "shop.orders")
    assert check_adoptions(engine) == {"orders": []}
    for table in ("shop.orders", "shop.low"):
        run(engine, f"ALTER TABLE {table} OWNER TO {name}")
    late = "CREATE TABLE shop.late PARTITION OF {} DEFAULT"
    with pytest.raises(ProgrammingError, match="permission denied for function"):
        run(own, late.format("shop.orders"))
    assert [one.what for one in check_adoptions(engine)["orders"]] == [
        f"the owner of {table} cannot make partitions of it" for table in ("shop.low", "shop.orders")
    ]
    adopted(engine, "shop.orders")
    assert check_adoptions(engine) == {"orders": []}
    run(own, late.format("shop.orders"), late.format("shop.low").replace("late", "later"))
    run(own, "INSERT INTO shop.orders VALUES (1, 'acme'), (1000, 'acme')")
    assert Reader(engine).seen() == {"acme": ["1", "1000"]}
