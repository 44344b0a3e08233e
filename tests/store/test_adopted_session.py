"""Whoever writes an adopted table finds everything as it would be without the adoption."""

# ruff: noqa: S608 - our own tables

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg.pq import TransactionStatus
from sqlalchemy import Engine

from tests.store.adopting import Reader, adopted, rows, run

TABLE = "CREATE TABLE {} (id serial PRIMARY KEY, customer text, total numeric, note text)"
FUNCTION = """
CREATE FUNCTION {0}_written(OUT found_one boolean, OUT counted int, OUT query text) LANGUAGE plpgsql AS $$
BEGIN
    query := current_query();
    UPDATE public.{0} SET note = 'none' WHERE id = -1;
    found_one := FOUND;
    INSERT INTO public.{0} (customer) VALUES ('bolt'), ('acme');
    GET DIAGNOSTICS counted = ROW_COUNT;
    found_one := found_one OR NOT FOUND;
END $$
"""
STATEMENTS = (
    "INSERT INTO public.{0} (customer, total) VALUES ('acme', 1)",
    "INSERT INTO public.{0} (customer, total) SELECT 'bolt', n FROM generate_series(1, 5) n RETURNING id, customer",
    "INSERT INTO public.{0} VALUES (1, 'acme', 9), (50, 'acme', 9) ON CONFLICT (id) DO UPDATE SET total = 9",
    "INSERT INTO public.{0} VALUES (1, 'acme', 9) ON CONFLICT DO NOTHING",
    "UPDATE public.{0} SET total = total + 1, customer = 'bolt' WHERE id < 3 RETURNING *",
    (
        "WITH gone AS (DELETE FROM public.{0} WHERE id = 1 RETURNING *) "
        "INSERT INTO public.{0} (customer) SELECT customer FROM gone"
    ),
    (
        "MERGE INTO public.{0} o USING (VALUES (2), (90)) v (id) ON v.id = o.id WHEN MATCHED THEN DELETE "
        "WHEN NOT MATCHED THEN INSERT VALUES (v.id, 'bolt', 9, 'm')"
    ),
    "SELECT found_one, counted FROM public.{0}_written()",
    "PREPARE w AS INSERT INTO public.{0} (customer) VALUES ($1)",
    "EXECUTE w ('acme')",
    "EXECUTE w (' no tenant ')",
    "DEALLOCATE w",
    "DELETE FROM public.{0} WHERE customer = 'bolt'",
    "TRUNCATE public.{0}",
    "INSERT INTO public.{0} (customer) VALUES (NULL)",
)
HOSTILE = (
    "CREATE SCHEMA hostile",
    "CREATE TABLE hostile.records (id int)",
    "CREATE TABLE hostile.adopted (source text)",
    "CREATE FUNCTION hostile.fails() RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN RAISE 'hostile'; END $$",
    "CREATE FUNCTION hostile.next_id() RETURNS bigint LANGUAGE sql AS 'SELECT hostile.fails()'",
    (
        "CREATE FUNCTION hostile.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS "
        "$$ SELECT now() FROM (SELECT hostile.fails()) f $$"
    ),
    "CREATE FUNCTION hostile.concat(text) RETURNS text LANGUAGE sql AS $$ SELECT hostile.fails()::text $$",
    "CREATE FUNCTION hostile.same(text, text) RETURNS boolean LANGUAGE sql AS $$ SELECT hostile.fails() IS NULL $$",
    "CREATE OPERATOR hostile.= (LEFTARG = text, RIGHTARG = text, FUNCTION = hostile.same)",
    "GRANT USAGE ON SCHEMA hostile TO PUBLIC",
)
SESSIONS = {
    "plain": (),
    "one transaction": ("BEGIN",),
    "serializable": ("BEGIN ISOLATION LEVEL SERIALIZABLE",),
    "repeatable read, constraints now": ("BEGIN ISOLATION LEVEL REPEATABLE READ", "SET CONSTRAINTS ALL IMMEDIATE"),
    "savepoint": ("BEGIN", "SAVEPOINT one"),
    "replayed": ("SET session_replication_role = replica",),
    "hostile": ("SET search_path = hostile, pg_catalog, public",),
    "formats": ("SET DateStyle = 'German, DMY'", "SET TimeZone = 'Pacific/Apia'", "SET extra_float_digits = -5"),
    "strings": ("SET standard_conforming_strings = off", "SET escape_string_warning = off"),
    "no rights": ("SET ROLE clerk",),
    "read only": ("BEGIN READ ONLY",),
}


class Session:
    """A program that writes one of two tables, and what it sees."""

    def __init__(self, engine: Engine, table: str, before: tuple[str, ...]) -> None:
        url = engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
        self.connection = psycopg.connect(url, autocommit=True)
        self.notices: list[str | None] = []
        self.connection.add_notice_handler(lambda said: self.notices.append(said.message_primary))
        self.table = table
        # The language brings settings of its own.
        for statement in ("DO 'BEGIN END'", *before):
            self.connection.execute(statement)

    def outcome(self, statement: str) -> tuple[Any, ...]:
        """What a statement returns and leaves in the session."""
        try:
            done = self.connection.execute(statement.format(self.table).encode())
        except psycopg.Error as error:
            return type(error), error.sqlstate, str(error.diag.message_primary).replace(self.table, "bare")
        tag = done.statusmessage
        found = sorted(done.fetchall(), key=repr) if done.description else None
        if self.connection.info.transaction_status is TransactionStatus.INERROR:
            return tag, found
        values = self.connection.execute(
            f"SELECT pg_catalog.lastval(), pg_catalog.currval('public.{self.table}_id_seq'), "
            "(SELECT pg_catalog.jsonb_object_agg(s.name, s.setting) FROM pg_catalog.pg_settings s)"
        ).fetchone()
        return tag, found, done.rowcount, values, self.notices, self.connection.info.transaction_status


@pytest.fixture
def shop(engine: Engine) -> Engine:
    """Two tables that differ in their names, of which `orders` is adopted."""
    for table in ("orders", "bare"):
        run(engine, TABLE.format(table), FUNCTION.format(table))
    run(engine, *HOSTILE)
    with engine.begin() as connection:
        if connection.exec_driver_sql("SELECT FROM pg_roles WHERE rolname = 'clerk'").first() is None:
            connection.exec_driver_sql("CREATE ROLE clerk")
        connection.exec_driver_sql("GRANT ALL ON orders, bare, orders_id_seq, bare_id_seq TO clerk")
    adopted(engine)
    return engine


def test_a_session_that_writes_finds_no_difference(shop: Engine) -> None:
    for name, before in SESSIONS.items():
        orders, bare = Session(shop, "orders", before), Session(shop, "bare", before)
        for statement in STATEMENTS:
            assert orders.outcome(statement) == bare.outcome(statement), (name, statement)
        for one in (orders, bare):
            if one.connection.info.transaction_status is not TransactionStatus.INERROR:
                with one.connection.cursor() as cursor:
                    with cursor.copy(f"COPY public.{one.table} FROM STDIN") as copy:
                        copy.write_row((70, "acme", 1, "copied"))
                    assert cursor.statusmessage == "COPY 1"
            one.connection.close()
        run(shop, "TRUNCATE orders, bare RESTART IDENTITY")


def test_what_is_announced_can_be_prepared_and_is_found_after_its_commit(shop: Engine) -> None:
    run(shop, "SELECT taskbridge.announce('orders')")
    session = Session(shop, "orders", ())
    listener = Session(shop, "orders", ("LISTEN taskbridge",))
    for statement in (
        "BEGIN",
        "INSERT INTO orders (customer) VALUES ('acme')",
        "PREPARE TRANSACTION 'shop'",
        "COMMIT PREPARED 'shop'",
    ):
        session.connection.execute(statement.encode())
    assert Reader(shop).seen() == {"acme": ["1"]}
    session.connection.execute("INSERT INTO orders (customer) VALUES ('acme')")
    (heard,) = listener.connection.notifies(timeout=20, stop_after=1)
    assert heard.channel == "taskbridge"
    for one in (session, listener):
        one.connection.close()


def test_serializable_transactions_that_write_other_rows_do_not_fail_each_other(shop: Engine) -> None:
    begin = ("BEGIN ISOLATION LEVEL SERIALIZABLE",)
    for at in range(5):
        both = [Session(shop, "orders", begin) for _ in range(2)]
        for place, one in enumerate(both):
            one.connection.execute(f"INSERT INTO orders (customer) VALUES ('t{at}-{place}')".encode())
        for one in both:
            one.connection.execute("COMMIT")
            one.connection.close()
    assert rows(shop, "SELECT count(*) FROM taskbridge.records") == [(10,)]


LOSSES = {
    "reset": "{0}; RESET ALL",
    "function": "SELECT without_it($${0}$$)",
    "highest": "SET taskbridge.last_id = '9223372036854775807 orders'; {0}",
    "lowest": "SET taskbridge.last_id = '-9223372036854775808 orders'; {0}",
    "another": "SET taskbridge.last_id = 'none'; {0}",
}


def test_ids_of_one_transaction_differ_whatever_becomes_of_its_settings(shop: Engine) -> None:
    run(
        shop,
        "CREATE FUNCTION without_it(what text) RETURNS void LANGUAGE plpgsql SET taskbridge.last_id = '' AS "
        "$$ BEGIN EXECUTE what; END $$",
    )
    for name, loss in LOSSES.items():
        session = Session(shop, "orders", ("BEGIN",))
        session.connection.execute("INSERT INTO orders (customer) VALUES ('acme')")
        for _ in range(20):
            for written in (
                "INSERT INTO orders (customer) SELECT 'acme' FROM generate_series(1, 3)",
                (
                    "INSERT INTO taskbridge.records (source, tenant, key, document) "
                    "SELECT 'others', 'bolt', gen_random_uuid(), '{}' FROM generate_series(1, 30)"
                ),
            ):
                session.connection.execute(loss.replace("{0}", written).encode())
        session.connection.execute("COMMIT")
        session.connection.close()
        counted = (
            "SELECT count(*), count(DISTINCT id), min(id) > 0 FROM taskbridge.records GROUP BY source ORDER BY source"
        )
        assert rows(shop, counted) == [(61, 61, True), (600, 600, True)], name
        run(shop, "TRUNCATE orders", "DELETE FROM taskbridge.records")
