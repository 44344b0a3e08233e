"""Migrations go up and down, make what the page for readers shows, and a schema that is not known is refused."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from sqlalchemy import Engine

from taskbridge.errors import SchemaMismatch
from taskbridge.store import check_schema, connect, migrate, record_invoice, register_pipeline
from taskbridge.store.schema import VERSION_TABLE, current, head
from tests.store.adopting import run
from verification.printing.schema_text import PAGE, schema_text

OURS = """
    SELECT relname FROM pg_class WHERE relnamespace = to_regnamespace('taskbridge')
    UNION ALL SELECT proname FROM pg_proc WHERE pronamespace = to_regnamespace('taskbridge')
"""


def objects(engine: Engine) -> set[str]:
    with engine.connect() as connection:
        return set(connection.exec_driver_sql(OURS).scalars())


def test_down_and_up_again_gives_the_same_schema(engine: Engine) -> None:
    before = objects(engine)
    assert migrate(engine, "base") == (head(), None)
    assert objects(engine) == set()
    assert migrate(engine) == (None, head())
    assert objects(engine) == before


def test_the_page_for_readers_shows_what_the_migrations_make(engine: Engine) -> None:
    assert PAGE.read_text(encoding="utf-8") == schema_text(engine), "run `make docs`"


def test_a_schema_is_checked_with_the_next_step_in_the_error(engine: Engine) -> None:
    check_schema(engine)
    with engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE taskbridge.{VERSION_TABLE} SET version_num = '9999'")  # noqa: S608 - our constant
    with pytest.raises(SchemaMismatch, match="9999, which this version of TaskBridge does not know"):
        check_schema(engine)
    with pytest.raises(SchemaMismatch, match="install the version that made it"):
        migrate(engine)
    assert current(engine) == "9999"


@pytest.mark.parametrize("made", ["TABLE taskbridge.records (id int)", "VIEW taskbridge.mine AS SELECT 1"])
def test_a_schema_of_somebody_else_with_our_name_is_left_alone(engine: Engine, made: str) -> None:
    migrate(engine, "base")
    run(engine, "CREATE SCHEMA taskbridge", f"CREATE {made}")
    before = objects(engine)
    for revision in ("head", "base"):
        with pytest.raises(SchemaMismatch, match=r"that is not TaskBridge's.*set TASKBRIDGE_SCHEMA to another name"):
            migrate(engine, revision)
        assert objects(engine) == before
    # and whoever looks is told the same as who migrates
    with pytest.raises(SchemaMismatch, match=r"that is not TaskBridge's.*set TASKBRIDGE_SCHEMA to another name"):
        check_schema(engine)
    # and with another name both have their own
    other = connect(engine.url.render_as_string(hide_password=False), "bridge")
    assert migrate(other)[1] == head()
    other.dispose()
    assert objects(engine) == before


def test_migrations_at_the_same_time_wait_for_each_other(engine: Engine, postgres_url: str) -> None:
    migrate(engine, "base")
    both = Barrier(4)

    def at_once(_: int) -> tuple[str | None, str | None]:
        # A pool of its own, as each process has: `migrate` closes it.
        own = connect(postgres_url)
        both.wait(10)
        try:
            return migrate(own)
        finally:
            own.dispose()

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(at_once, range(4)))
    assert sorted(found, key=str) == sorted([(None, head())] + [(head(), head())] * 3, key=str)
    check_schema(engine)


def test_a_failed_migration_says_in_a_sentence_what_postgres_refused(engine: Engine) -> None:
    migrate(engine, "base")
    run(engine, "CREATE SCHEMA taskbridge; CREATE TYPE taskbridge.deliveries AS ENUM ()")
    with pytest.raises(SchemaMismatch) as failed:
        migrate(engine)
    assert objects(engine) == set(), "nothing is half made"
    assert current(engine) is None
    assert str(failed.value) == (
        "the schema could not be changed, and is as it was: Postgres says 'type \"deliveries\" already exists': "
        "fix that and run `taskbridge migrate` again"
    )


def test_the_view_shows_no_pipeline_that_nobody_declared(engine: Engine) -> None:
    def shown() -> set[str]:
        with engine.connect() as connection:
            return set(connection.exec_driver_sql("SELECT pipeline FROM taskbridge.record_states").scalars())

    record_invoice(engine, "acme", "1", {})
    assert shown() == {"invoices"}, "nobody has read invoices yet, and auditors see that they wait"
    register_pipeline(engine, "orders", "invoices")
    assert shown() == {"orders"}
