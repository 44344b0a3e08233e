"""What a handler leaves in its session stays with its batch; what it writes commits with the cursor or not at all."""

from __future__ import annotations

import asyncio
import decimal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from sqlalchemy import Connection, event, inspect, select
from sqlalchemy.exc import DBAPIError, IntegrityError, InvalidRequestError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from taskbridge.common.run_key import RunKey
from taskbridge.declaring.batch import Batch
from taskbridge.errors import HandlerMistake
from taskbridge.store import connect
from taskbridge.store.db import checked_out, driver_of
from taskbridge.worker import slot
from tests.failures.drill import Drill
from tests.store.pooler import SettingPooler

SCHEMA = """
CREATE SCHEMA acme;
CREATE TABLE public.effects (tenant text);
CREATE TABLE acme.effects (tenant text);
CREATE SEQUENCE public.numbers;
CREATE ROLE shopkeeper;
GRANT ALL ON public.effects TO shopkeeper
"""


class Base(DeclarativeBase):
    pass


class Total(Base):
    __tablename__ = "totals"
    number: Mapped[str] = mapped_column(primary_key=True)


@pytest.fixture
def drill(drill: Drill) -> Iterator[Drill]:
    engine = drill.deployment.engine
    drill.deployment.execute(SCHEMA)
    Base.metadata.create_all(engine)
    yield drill
    drill.runtime.engine.dispose()
    drill.deployment.execute("DROP OWNED BY shopkeeper; DROP ROLE shopkeeper")


STATEMENTS = (
    "SET search_path TO acme",
    "CREATE TEMP TABLE effects (tenant text) ON COMMIT PRESERVE ROWS",
    "SET app.tenant = 'acme'",
    "SET session_replication_role = replica",
    "SET default_transaction_isolation = 'serializable'",
    "SET statement_timeout = '7s'",
    "SET DateStyle = 'German'",
    "SET ROLE shopkeeper",
    "SET SESSION AUTHORIZATION shopkeeper",
    "LISTEN news",
    "DECLARE held CURSOR WITH HOLD FOR SELECT 1",
    "SELECT pg_advisory_lock(7)",
    "SELECT nextval('public.numbers')",
    "PREPARE mine AS SELECT 1",
    "DEALLOCATE ALL",
)


def dumps_hello(driver: psycopg.Connection[Any]) -> None:
    class Hello(psycopg.types.string.StrDumper):
        def dump(self, _: Any) -> bytes:
            return b"hello"

    driver.adapters.register_dumper(str, Hello)


def executes_often(driver: psycopg.Connection[Any]) -> None:
    for number in range(9):
        driver.execute("SELECT %s", (number,))
        driver.execute("SAVEPOINT one")
        driver.execute("ROLLBACK TO SAVEPOINT one")


def sets(name: str, value: Any) -> Callable[[psycopg.Connection[Any]], None]:
    def does(driver: psycopg.Connection[Any]) -> None:
        setattr(driver, name, value)

    return does


DRIVER: dict[str, Callable[[psycopg.Connection[Any]], Any]] = {
    "adapters": dumps_hello,
    "statements prepared": executes_often,
    "row_factory": sets("row_factory", dict_row),
    "cursor_factory": sets("cursor_factory", psycopg.ClientCursor),
    "server_cursor_factory": sets("server_cursor_factory", type("Own", (psycopg.ServerCursor,), {})),
    "prepare_threshold": sets("prepare_threshold", 0),
    "prepared_max": sets("prepared_max", 7),
    "notice handler": lambda driver: driver.add_notice_handler(print),
    "notify handler": lambda driver: driver.add_notify_handler(print),
    "read_only": sets("_read_only", True),  # as by a handler that has ended the transaction
    "autocommit": sets("_autocommit", True),
}

LOOK = """
SELECT current_user, session_user, to_regclass('effects')::oid::int8, nullif(current_setting('app.tenant', true), ''),
       (SELECT count(*) FROM pg_listening_channels()), (SELECT count(*) FROM pg_cursors WHERE name = 'held'),
       (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()),
       (SELECT count(*) FROM pg_prepared_statements WHERE name !~ '^_pg3_[0-9]{1,5}$'),
       (SELECT json_object_agg(name, setting ORDER BY name) FROM pg_settings
        WHERE name <> 'application_name' AND name !~ '^plpgsql')::text,
       'text' || %s::text
"""


def look(connection: Connection) -> list[Any]:
    """What a handler finds in its session, in the driver's connection, and in SQLAlchemy's."""
    driver: Any = driver_of(connection)
    with suppress(DBAPIError), connection.begin_nested():
        connection.exec_driver_sql("SELECT lastval()")
        return ["lastval() has a value"]
    return [
        *connection.exec_driver_sql(LOOK, ("text",)).one(),
        driver.autocommit,
        driver.read_only,
        driver.row_factory,
        driver.cursor_factory,
        driver.server_cursor_factory,
        driver.prepare_threshold,
        driver.prepared_max,
        len(driver._notice_handlers),
        len(driver._notify_handlers),
        connection.info,
    ]


@pytest.mark.parametrize("parameter", [{}, {"prepare_threshold": "none"}], ids=["direct", "pooled"])
def test_nothing_that_is_left_in_a_session_reaches_the_next_tenant(drill: Drill, parameter: dict[str, str]) -> None:
    url = drill.deployment.engine.url.update_query_dict(parameter)
    drill.runtime.engine = connect(url.render_as_string(hide_password=False), statement_timeout=10)
    seen: dict[str, list[Any]] = {}
    now = "at first"

    def handler(batch: Batch) -> None:
        connection = batch.connection
        if batch.tenant == "bolt":
            seen[now] = look(connection)
            return
        connection.info["mine"] = True
        if now in DRIVER:
            DRIVER[now](driver_of(connection))
        else:
            connection.exec_driver_sql(now)
        if len(drill.calls) % 2:
            # What a rollback does not undo.
            raise ValueError

    drill.handle(handler, max_attempts=100)
    drill.save("bolt", "at first")
    drill.go_on()
    first = seen.pop(now)
    kinds = (*STATEMENTS, *DRIVER)
    for kind in kinds:
        now = kind
        for tenant in ("acme", "bolt"):
            drill.save(tenant, kind)
            drill.run_one()
        drill.go_on()
    assert {kind: (first, found) for kind, found in seen.items() if found != first} == {}
    # DEALLOCATE ALL takes the session's own statements too.
    assert {type(error) for error in drill.errors} <= {ValueError, HandlerMistake}
    assert drill.states("bolt") == {"handled": len(kinds) + 1}
    assert drill.states("acme") == {"handled": len(kinds)}


SETTINGS = "SELECT json_object_agg(name, setting ORDER BY name) FROM pg_settings WHERE name !~ '^plpgsql'"


def test_a_session_behind_a_pooler_has_its_own_settings_again(drill: Drill) -> None:
    """A pooler applies a client's start parameters by SET, and RESET ALL undoes them."""
    url = drill.deployment.engine.url
    with drill.deployment.engine.begin() as connection:
        for setting in (
            "client_encoding = latin1",
            "application_name = theirs",
            "DateStyle = German",
            "IntervalStyle = iso_8601",
        ):
            connection.exec_driver_sql(f'ALTER DATABASE "{url.database}" SET {setting}')
    address = url.render_as_string(hide_password=False)
    pooler = SettingPooler(address)
    engine = connect(pooler.url, statement_timeout=10)
    drill.runtime.engine = engine
    seen = []

    def handler(batch: Batch) -> None:
        connection = batch.connection
        seen.append(connection.exec_driver_sql("SELECT %s::text, now()", ("\u65e5\u672c",)).one()[0])
        connection.exec_driver_sql("INSERT INTO effects VALUES (%s)", (batch.tenant,))
        if len(seen) == 1:
            raise ValueError

    with checked_out(engine) as driver:
        first = driver.execute(SETTINGS).fetchall(), driver.info.backend_pid
    drill.handle(handler)
    for tenant in ("\u65e5\u672c", "bolt"):
        drill.save(tenant, "1")
        drill.go_on()
        with checked_out(engine) as driver:
            assert (driver.execute(SETTINGS).fetchall(), driver.info.backend_pid) == first
    assert [type(error) for error in drill.errors] == [ValueError]
    assert seen == ["\u65e5\u672c"] * 3
    assert drill.states() == {"handled": 2}
    engine.dispose()
    pooler.close()


def streams(driver: psycopg.Connection[Any]) -> Any:
    rows = driver.cursor().stream("SELECT generate_series(1, 100000)")
    next(rows)
    return rows


def copies(driver: psycopg.Connection[Any]) -> Any:
    copying = driver.cursor().copy("COPY effects FROM STDIN")
    copying.__enter__()
    return copying


def queues(driver: psycopg.Connection[Any]) -> Any:
    pipeline = driver.pipeline()
    pipeline.__enter__()
    driver.execute("SELECT 1")
    return pipeline


def sleeps(driver: psycopg.Connection[Any]) -> Any:
    thread = threading.Thread(target=lambda: suppress_all(lambda: driver.execute("SELECT pg_sleep(600)")))
    thread.start()
    while not driver.lock.locked():
        time.sleep(0.01)
    return thread


def suppress_all(call: Callable[[], Any]) -> None:
    with suppress(Exception):
        call()


def test_a_connection_that_is_still_in_use_fails_its_batch_and_no_other(drill: Drill) -> None:
    kept: list[Any] = []

    def handler(batch: Batch) -> None:
        connection = batch.connection
        connection.exec_driver_sql("INSERT INTO effects VALUES (%s)", (batch.tenant,))
        if batch.tenant != "bolt" and batch.tenant not in failed:
            failed.append(batch.tenant)
            driver = driver_of(connection)
            kept.append(KEPT[batch.tenant](driver))
            if batch.tenant == "sleeps":
                event.listen(drill.runtime.engine, "invalidate", lambda *_: at_work.append(driver.lock.locked()))

    failed: list[str] = []
    at_work: list[bool] = []
    drill.handle(handler)
    for tenant in KEPT:
        drill.save(tenant, "1")
        drill.save("bolt", tenant)
        started = time.monotonic()
        drill.go_on()
        assert time.monotonic() - started < 60
    assert [type(error) for error in drill.errors] == [HandlerMistake] * len(KEPT)
    assert all("still in use" in str(error) for error in drill.errors)
    # Else libpq would free what a thread works on, and the process would crash now and then.
    assert at_work == [False], "no thread is inside the driver when its session is closed"
    assert drill.states() == {"handled": 2 * len(KEPT)}
    assert drill.deployment.rows("SELECT count(*) FROM effects") == [(2 * len(KEPT),)]


KEPT: dict[str, Callable[[psycopg.Connection[Any]], Any]] = {
    one.__name__: one for one in (streams, copies, queues, sleeps)
}


def test_who_uses_a_connection_after_its_batch_is_refused_and_spoils_nothing(drill: Drill) -> None:
    kept: list[psycopg.Connection[Any]] = []
    refused: list[str] = []

    def handler(batch: Batch) -> None:
        driver = driver_of(batch.connection)
        if batch.tenant == "acme":
            kept.append(driver)
            return
        batch.connection.exec_driver_sql("INSERT INTO effects VALUES ('bolt')")
        (old,) = kept
        assert old.pgconn is driver.pgconn, "the same session"
        for call in (lambda: old.execute("DELETE FROM effects"), old.commit, old.rollback, old.close, old.cancel):
            with suppress(HandlerMistake):
                call()
                continue
            refused.append("refused")
        assert batch.connection.exec_driver_sql("SELECT tenant FROM effects").scalars().all() == ["bolt"]

    drill.handle(handler)
    for tenant in ("acme", "bolt"):
        drill.save(tenant, "1")
        drill.go_on()
    assert drill.errors == []
    assert refused == ["refused"] * 2
    assert drill.states() == {"handled": 2}


UNFRIENDLY = (
    "SET LOCAL ROLE shopkeeper",
    "SET ROLE shopkeeper",
    "SET LOCAL statement_timeout = '1ms'",
    "SET LOCAL lock_timeout = '1ms'",
    "SET LOCAL search_path TO acme, pg_catalog",
    "SET LOCAL session_replication_role = replica",
    "SET LOCAL client_encoding = 'latin1'",
    "SET LOCAL transform_null_equals = on",
)


def test_the_advance_is_made_under_our_own_role_and_settings(drill: Drill, caplog: pytest.LogCaptureFixture) -> None:
    engine = drill.deployment.engine
    with engine.begin() as connection:
        # The handler could let ours call something of its own.
        connection.exec_driver_sql(
            "CREATE FUNCTION acme.set_config(text, text, boolean) RETURNS text LANGUAGE sql AS $$ SELECT 1 / 0 $$"
        )
        connection.exec_driver_sql("GRANT USAGE ON SCHEMA acme TO shopkeeper")
    tenants = {f"tenant {number} \u20ac": statement for number, statement in enumerate(UNFRIENDLY)}

    def handler(batch: Batch) -> None:
        batch.connection.exec_driver_sql("INSERT INTO public.effects VALUES ('some')")
        batch.connection.exec_driver_sql(tenants[batch.tenant])

    drill.handle(handler)
    for tenant in tenants:
        drill.save(tenant, "1")
    drill.go_on()
    assert drill.states() == {"handled": len(tenants)}
    assert drill.deployment.rows("SELECT count(*) FROM effects") == [(len(tenants),)]
    assert "run history" not in caplog.text
    kept = drill.deployment.rows("SELECT count(DISTINCT tenant) FROM taskbridge.runs WHERE outcome = 'handled'")
    assert kept == [(len(tenants),)]


def test_what_a_handler_deferred_runs_under_its_settings_and_so_does_the_commit(drill: Drill) -> None:
    drill.deployment.execute(
        "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "INSERT INTO effects VALUES (current_user || ' ' || current_setting('app.tenant')); RETURN NULL; END $$"
    )
    drill.deployment.execute(
        "CREATE CONSTRAINT TRIGGER note AFTER INSERT ON public.effects DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION note()"
    )
    drill.deployment.execute("GRANT USAGE ON SCHEMA acme TO shopkeeper; GRANT ALL ON acme.effects TO shopkeeper")

    def handler(batch: Batch) -> None:
        batch.connection.exec_driver_sql("SET LOCAL app.tenant = 'acme'; SET LOCAL search_path TO acme")
        batch.connection.exec_driver_sql("SET LOCAL ROLE shopkeeper")
        batch.connection.exec_driver_sql("INSERT INTO public.effects VALUES ('1')")

    drill.deliver(handler, "1")
    assert drill.errors == []
    assert drill.deployment.rows("SELECT tenant FROM acme.effects") == [("shopkeeper acme",)]


TENANT: ContextVar[str] = ContextVar("TENANT", default="nobody")


@pytest.mark.parametrize("kind", ["function", "coroutine"])
def test_each_call_has_a_context_of_its_own(drill: Drill, kind: str) -> None:
    seen: list[tuple[str, int]] = []

    def leave(batch: Batch) -> None:
        seen.append((TENANT.get(), decimal.getcontext().prec))
        TENANT.set(batch.tenant)
        decimal.getcontext().prec = 5
        if len(seen) == 1:
            raise ValueError

    async def leave_later(batch: Batch) -> None:
        await asyncio.sleep(0)
        leave(batch)

    drill.handle(leave if kind == "function" else leave_later)
    for tenant in ("acme", "bolt", "cust"):
        drill.save(tenant, "1")
    keys = [RunKey(*message) for message in iter(drill.inline.message, None)]
    slot.run_together(drill.runtime, keys)
    drill.go_on()
    assert drill.states() == {"handled": 3}
    assert seen == [("nobody", 28)] * 4


def totals(drill: Drill) -> list[str]:
    with Session(drill.deployment.engine) as session:
        return sorted(session.scalars(select(Total.number)))


def add(batch: Batch) -> None:
    batch.session.add_all(Total(number=record.external_id) for record in batch)


def test_what_was_not_flushed_is_written_and_the_session_ends_with_the_batch(drill: Drill) -> None:
    kept: list[tuple[Batch, Session, Total]] = []

    def handler(batch: Batch) -> None:
        with batch.session as session:
            assert session is batch.session
            first = Total(number="first")
            session.add(first)
            session.flush()
            assert batch.connection.exec_driver_sql("SELECT number FROM totals").scalars().all() == ["first"]
        kept.append((batch, session, first))
        add(batch)

    drill.deliver(handler, "1", "2")
    assert totals(drill) == ["1", "2", "first"], "closing it drops nothing"
    assert drill.states() == {"handled": 2}
    ((batch, session, first),) = kept
    assert inspect(first).detached
    with pytest.raises(HandlerMistake, match="the batch is over"):
        _ = batch.session
    with pytest.raises(InvalidRequestError, match="permanently closed"):
        session.scalars(select(Total))


def test_nothing_of_a_batch_that_fails_is_written_also_what_was_committed(drill: Drill) -> None:
    def handler(batch: Batch) -> None:
        add(batch)
        batch.session.commit()
        if len(drill.calls) == 1:
            raise ValueError

    drill.deliver(handler, "1")
    # The first call's row would be in the way of the second's.
    assert totals(drill) == ["1"]
    assert [len(numbers) for _, numbers in drill.calls] == [1, 1]


def test_a_part_that_is_rolled_back_leaves_the_rest(drill: Drill) -> None:
    def handler(batch: Batch) -> None:
        session = batch.session
        add(batch)
        session.commit()
        with suppress(IntegrityError), session.begin_nested():
            session.add(Total(number="1"))
            session.flush()
        session.add(Total(number="1"))
        with pytest.raises(IntegrityError):
            session.flush()
        session.rollback()
        session.add(Total(number="after"))

    drill.deliver(handler, "1")
    assert totals(drill) == ["1", "after"]
    assert drill.states() == {"handled": 1}


def test_a_record_whose_row_breaks_a_constraint_goes_to_quarantine_alone(drill: Drill) -> None:
    """Found when the session is flushed after the handler; `test_ways.py` has one that is found by the commit."""

    def handler(batch: Batch) -> None:
        for record in batch:
            row = Total(number="taken" if record.external_id == "bad" else record.external_id)
            batch.session.add(row)

    with Session(drill.deployment.engine) as session, session.begin():
        session.add(Total(number="taken"))
    drill.deliver(handler, "1", "bad", "2")
    assert totals(drill) == ["1", "2", "taken"]
    assert drill.states() == {"handled": 2, "quarantined": 1}
