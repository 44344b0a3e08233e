"""What a handler writes with Django's ORM commits with the cursor, or not at all; nothing of Django's stays behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import IntegrityError, close_old_connections, connection, connections, transaction
from django.db.backends.postgresql.base import DatabaseWrapper
from django.db.backends.signals import connection_created
from django.test.utils import CaptureQueriesContext, override_settings
from psycopg.adapt import Dumper
from psycopg.types import TypeInfo
from sqlalchemy.exc import ProgrammingError

from taskbridge.declaring.batch import Batch
from taskbridge.declaring.pipeline import Handler
from taskbridge.errors import ConfigurationError, HandlerMistake
from taskbridge.store.db import Bounded, driver_of
from tests.django.shop.models import Customer, Order
from tests.failures.drill import Drill
from tests.store.adopting import run

OBJECTS: Any = Order.objects


def create(batch: Batch) -> None:
    for record in batch:
        OBJECTS.create(number=record.external_id)


def handled(drill: Drill, handler: Handler, *keys: str) -> None:
    """Save records of acme, and let runs go on until nothing is left to do."""
    drill.handle(handler)
    drill.save("acme", *(keys or ("1",)))
    drill.go_on()


def numbers() -> list[str]:
    return sorted(OBJECTS.values_list("number", flat=True))


def test_what_a_handler_creates_commits_with_the_cursor_in_one_session(drill: Drill) -> None:
    sessions: list[int] = []
    kept: list[Any] = []

    def handler(batch: Batch) -> None:
        create(batch)
        kept.append(connections["default"])
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            sessions.append(cursor.fetchone()[0])
        sessions.append(batch.connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one())
        # Nobody else sees it yet.
        assert drill.deployment.rows("SELECT count(*) FROM shop_order") == [(0,)]
        # Rows come through a cursor of the server, too.
        OBJECTS.bulk_create(Order(number=f"many {number}") for number in range(50))
        assert sum(1 for _ in OBJECTS.iterator(chunk_size=10)) == 52
        OBJECTS.select_for_update().filter(number__startswith="many").delete()

    def note(connection: Any, **_: Any) -> None:
        made.append(isinstance(connection.connection, Bounded))

    made: list[bool] = []
    connection_created.connect(note)
    try:
        with CaptureQueriesContext(connections["default"]) as queries:
            handled(drill, handler, "1", "2")
    finally:
        connection_created.disconnect(note)
    assert sessions[0] == sessions[1]
    assert drill.errors == []
    assert numbers() == ["1", "2"]
    assert drill.states() == {"handled": 2}
    assert True in made, "who waits for new connections sees it"
    assert any("INSERT" in query["sql"] for query in queries), "and so does who looks at queries"
    with pytest.raises(HandlerMistake, match="the batch is over"), kept[0].cursor():
        pass


def test_hooks_run_after_the_commit_on_the_project_s_own_connection(drill: Drill, caplog: Any) -> None:
    seen: list[Any] = []

    def hook() -> None:
        seen.append((numbers(), drill.states(), connection.in_atomic_block))
        OBJECTS.create(number="by the hook")

    def handler(batch: Batch) -> None:
        create(batch)
        with suppress(ValueError), transaction.atomic():
            transaction.on_commit(lambda: seen.append("of a part that was rolled back"))
            raise ValueError("inner")
        transaction.on_commit(lambda: 1 / 0)
        transaction.on_commit(hook)
        if len(drill.calls) == 1:
            raise ValueError

    handled(drill, handler)
    assert seen == [(["1"], {"handled": 1}, False)]
    assert numbers() == ["1", "by the hook"]
    assert "a hook after the commit failed" in caplog.text


def test_a_handler_that_does_not_touch_the_database_opens_no_transaction_and_a_hook_belongs_to_one(
    drill: Drill,
) -> None:
    """Else what was handled before the handler raised would be kept, and its hook would not run."""
    seen: list[str] = []
    opened: list[bool] = []

    def handler(batch: Batch) -> None:
        opened.append(connection.connection is not None)
        for record in batch:
            if record.external_id == "2" and len(drill.calls) == 1:
                raise ValueError
            transaction.on_commit(partial(seen.append, record.external_id))
            batch.handled(record)

    handled(drill, handler, "1", "2")
    assert sorted(seen) == ["1", "2"]
    assert True not in opened


def test_a_hook_that_takes_too_long_is_given_up_and_the_batch_stays_handled(drill: Drill, caplog: Any) -> None:
    def handler(_: Batch) -> None:
        transaction.on_commit(threading.Event().wait)

    drill.handle(handler, soft_time_limit=1)
    drill.save("acme", "1")
    drill.go_on()
    assert drill.states() == {"handled": 1}
    assert len(drill.calls) == 1
    assert "SoftTimeLimitExceeded" in caplog.text


def test_a_batch_that_cannot_commit_any_more_fails(drill: Drill) -> None:
    def handler(batch: Batch) -> None:
        match len(drill.calls):
            case 1:
                create(batch)
                with pytest.raises(IntegrityError):
                    create(batch)
            case 2:
                create(batch)
                with pytest.raises(ValueError, match="inner"), transaction.atomic(savepoint=False):
                    raise ValueError("inner")
            case 3:
                create(batch)
                transaction.set_rollback(True)
            case 4:
                with connection.cursor() as cursor:
                    cursor.execute("COMMIT")

    handled(drill, handler)
    *caught, committed = drill.errors
    assert [type(error) for error in caught] == [HandlerMistake] * 3
    assert all("the handler caught" in str(error) for error in caught)
    assert "committed, rolled back or closed" in str(committed)
    assert numbers() == []
    assert drill.states() == {"handled": 1}


def test_django_neither_ends_the_transaction_nor_closes_its_connection(drill: Drill) -> None:
    def handler(batch: Batch) -> None:
        create(batch)
        with pytest.raises(IntegrityError), transaction.atomic():
            create(batch)
        with pytest.raises(RuntimeError, match="durable"), transaction.atomic(durable=True):
            pass
        for end in (transaction.commit, transaction.rollback):
            with pytest.raises(transaction.TransactionManagementError):
                end()
        for close in (connection.close, connections.close_all, close_old_connections):
            close()
        OBJECTS.create(number="after")

    handled(drill, handler)
    assert drill.errors == []
    assert numbers() == ["1", "after"]


@pytest.fixture
def _role(drill: Drill) -> Iterator[None]:
    grants = (f"GRANT ALL ON ALL {what} IN SCHEMA public TO django_shop" for what in ("TABLES", "SEQUENCES"))
    run(drill.deployment.engine, "CREATE ROLE django_shop", *grants)
    yield
    connections.close_all()
    drill.runtime.engine.dispose()
    run(drill.deployment.engine, "DROP OWNED BY django_shop", "DROP ROLE django_shop")


@pytest.mark.usefixtures("_role")
def test_nothing_that_django_sets_stays_with_the_session(drill: Drill, monkeypatch: pytest.MonkeyPatch) -> None:
    """Time zone, role, adapters and class of cursors are Django's in the call, and TaskBridge's after."""
    monkeypatch.setitem(connections.settings["default"], "TIME_ZONE", "Asia/Tokyo")
    monkeypatch.setitem(connections.settings["default"], "OPTIONS", {"assume_role": "django_shop"})
    moment = datetime(2026, 1, 2, 3, tzinfo=UTC)
    seen: list[Any] = []
    look = "SELECT current_setting('TimeZone'), current_user, '{\"a\": 1}'::jsonb"

    def handler(batch: Batch) -> None:
        sessions.append(driver_of(batch.connection).pgconn)
        seen.append(batch.connection.exec_driver_sql(look).one())
        OBJECTS.create(number="1", at=moment, details={"a": [1]})
        with connection.cursor() as cursor:
            cursor.execute(look)
            seen.append(cursor.fetchone())
        row = OBJECTS.get()
        assert (row.at, row.details) == (moment, {"a": [1]})
        assert str(row.at.tzinfo) == "Asia/Tokyo"
        seen.append(batch.connection.exec_driver_sql("SELECT '{\"a\": 1}'::jsonb").scalar_one())

    sessions: list[Any] = []
    handled(drill, handler)
    assert drill.errors == []
    before, during, of_taskbridge = seen
    assert during == ("Asia/Tokyo", "django_shop", '{"a": 1}')
    assert of_taskbridge == {"a": 1}
    with drill.runtime.engine.connect() as later:
        assert driver_of(later).pgconn is sessions[0]
        assert later.exec_driver_sql(look).one() == before
        assert not type(driver_of(later).cursor()).__module__.startswith("django")


class Point:
    """A value for which psycopg knows no form."""


class PointDumper(Dumper):
    def dump(self, _: Point) -> bytes:
        return b"a point"


class Prepares(DatabaseWrapper):
    """A backend that looks for a type and registers a form of values, as GeoDjango's for PostGIS."""

    def get_new_connection(self, conn_params: Any) -> Any:
        made: Any = super().get_new_connection(conn_params)
        found = TypeInfo.fetch(made, "shop_order")
        assert found is not None
        made.adapters.register_dumper(Point, PointDumper)
        return made


@contextmanager
def backend(kind: type[DatabaseWrapper]) -> Iterator[None]:
    before = connections["default"]
    connections["default"] = made = kind(before.settings_dict, "default")
    yield
    made.close()
    connections["default"] = before


@pytest.mark.parametrize("options", [{}, {"isolation_level": 2, "options": "-c search_path=public,pg_catalog"}])
def test_a_backend_prepares_the_batch_s_connection_as_its_own(
    drill: Drill, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    monkeypatch.setitem(connections["default"].settings_dict, "OPTIONS", options)

    def handler(batch: Batch) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT %s", [point])
            seen.append(cursor.fetchone()[0])
        create(batch)
        if len(seen) == 1:
            raise ValueError

    point: Any = Point()
    seen: list[str] = []
    with backend(Prepares):
        handled(drill, handler)
    assert [type(error) for error in drill.errors] == [ValueError]
    assert seen == ["a point"] * 2
    assert numbers() == ["1"]
    with drill.runtime.engine.connect() as later, pytest.raises(ProgrammingError, match="cannot adapt"):
        later.exec_driver_sql("SELECT %s", (point,))


def test_the_project_s_own_connection_is_not_touched(drill: Drill) -> None:
    own = connections["default"]
    with own.cursor() as cursor:
        cursor.execute("SET application_name = 'own'")
    session = own.connection
    with transaction.atomic():
        OBJECTS.create(number="outside")
        drill.handle(create)
        drill.save("acme", "1")
        drill.go_on()
        assert connections["default"] is own
        assert own.connection is session
        transaction.set_rollback(True)
    assert numbers() == ["1"]


@pytest.mark.parametrize(
    ("alias", "left"),
    [("default", ["other", "thread"]), ("other", ["default", "thread"]), (None, ["default", "other", "thread"])],
)
def test_another_alias_and_another_thread_commit_on_their_own(drill: Drill, alias: str | None, left: list[str]) -> None:
    def in_thread() -> None:
        OBJECTS.create(number="thread")
        connections.close_all()

    def handler(_: Batch) -> None:
        if len(drill.calls) == 1:
            for name in ("default", "other"):
                OBJECTS.using(name).create(number=name)
            thread = threading.Thread(target=in_thread)
            thread.start()
            thread.join()
            raise ValueError

    with override_settings(TASKBRIDGE_DATABASE=alias):
        handled(drill, handler)
    assert numbers() == left


def test_a_coroutine_commits_on_its_own(drill: Drill) -> None:
    async def coroutine(_: Batch) -> None:
        if len(drill.calls) == 1:
            await sync_to_async(OBJECTS.create)(number="coroutine")
            await sync_to_async(connections.close_all)()
            raise ValueError

    handled(drill, coroutine)
    assert numbers() == ["coroutine"]


def test_another_isolation_level_is_refused(drill: Drill, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connections.settings["default"], "OPTIONS", {"isolation_level": 4})
    handled(drill, lambda _: OBJECTS.count() if len(drill.calls) == 1 else None)
    (error,) = drill.errors
    assert isinstance(error, ConfigurationError)
    assert "TASKBRIDGE_DATABASE" in str(error)


def test_a_session_that_is_lost_looks_like_one_that_is_away_and_comes_again(drill: Drill) -> None:
    def handler(batch: Batch) -> None:
        if len(drill.calls) == 1:
            pid = batch.connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
            assert drill.deployment.rows(f"SELECT pg_terminate_backend({pid}, 5000)") == [(True,)]
        create(batch)

    handled(drill, handler)
    assert numbers() == ["1"]
    assert drill.quarantine() == []
    assert Customer.objects.count() == 0
