"""Only triggers set transaction ids and revisions: no caller makes a record pass for handled, or uses one twice."""

# ruff: noqa: S608 - the names of our own tables

from __future__ import annotations

import json
from typing import Any

import pytest
from sqlalchemy import Engine

from taskbridge.common.run_key import RunKey
from taskbridge.declaring.batch import Record
from taskbridge.declaring.criteria import Match
from taskbridge.store import Claim, Cursors, Page, Records, rebase, record_invoice

TOKEN = "0000000000000001-aaaaaaaaaaaa"
ALERTS = "alerts"

DELETE = "WITH gone AS (DELETE FROM taskbridge.messages) DELETE FROM taskbridge.records"
SAVE = "CREATE TABLE backup AS SELECT * FROM taskbridge.records"
COPY_BACK = "INSERT INTO taskbridge.records SELECT * FROM public.backup"


def execute(engine: Engine, *statements: str) -> None:
    with engine.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)


def rows(engine: Engine, statement: str) -> list[tuple[Any, ...]]:
    with engine.connect() as connection:
        return [tuple(row) for row in connection.exec_driver_sql(statement)]


def write(engine: Engine, source: str, name: str, version: int = 1) -> None:
    if source == "invoices":
        record_invoice(engine, "acme", name, {"version": version})
    else:
        payload = json.dumps({"version": version})
        Records(engine, ALERTS).write(name, payload, Match("acme", 1000, "$.level"))


def sweep(engine: Engine, source: str) -> list[Record]:
    """One batch, delivered to nobody."""
    cursors, key = Cursors(engine, source), RunKey(source, "acme", TOKEN)
    page: Page = cursors.claim(Claim(key, 100, events=1, runs=1))
    with cursors.transaction(key) as transaction:
        transaction.advance(transaction.move(page))
    return list(page.records)


@pytest.mark.parametrize("source", ["invoices", ALERTS])
def test_rows_that_are_copied_back_from_a_backup_are_pending_under_a_new_revision(engine: Engine, source: str) -> None:
    write(engine, source, "1")
    execute(engine, SAVE)
    (before,) = sweep(engine, source)
    execute(engine, DELETE, COPY_BACK)
    (after,) = sweep(engine, source)
    assert after.document == before.document
    assert after.revision > before.revision


@pytest.mark.parametrize("source", ["invoices", ALERTS])
def test_rows_of_a_replica_have_this_clusters_ids_and_not_the_publishers(engine: Engine, source: str) -> None:
    # given rows of a publisher that counts fewer transactions: its ids lie before every cursor here
    write(engine, source, "1")
    write(engine, source, "2")
    execute(engine, SAVE, f"{DELETE} WHERE key = '1'", "UPDATE backup SET xid = '3'")
    sweep(engine, source)
    # when they come as logical replication applies them
    execute(
        engine,
        "SET LOCAL session_replication_role = replica",
        "SET LOCAL search_path = ''",
        f"{COPY_BACK} WHERE key = '1'",
        "UPDATE taskbridge.records SET recorded_at = recorded_at - interval '1 day', xid = '3' WHERE key = '2'",
    )
    # then both are pending
    assert sorted(record.external_id for record in sweep(engine, source)) == ["1", "2"]
    assert rows(engine, "SELECT count(*) FROM taskbridge.records WHERE xid = '3'") == [(0,)]


def test_an_upsert_that_sets_ids_itself_makes_a_new_revision_all_the_same(engine: Engine) -> None:
    write(engine, "invoices", "1")
    (before,) = sweep(engine, "invoices")
    for version, also in enumerate(
        ("xid = '3'", "xid = '3', revision = 1", "revision = 1", "revision = revision + 0"), 2
    ):
        execute(engine, f"UPDATE taskbridge.records SET document = '{{\"version\": {version}}}', {also}")
        (after,) = sweep(engine, "invoices")
        assert after.document == {"version": version}
        assert after.revision > before.revision
        assert after.idempotency_key != before.idempotency_key
        before = after


@pytest.mark.parametrize("source", ["invoices", ALERTS])
def test_what_is_deleted_and_written_anew_has_a_key_that_nobody_remembers(engine: Engine, source: str) -> None:
    seen = set()
    for version in range(1, 4):
        write(engine, source, "1", version)
        (record,) = sweep(engine, source)
        assert record.document == {"version": version}
        seen.add(record.idempotency_key)
        execute(engine, DELETE)
    assert len(seen) == 3


def test_after_a_rebase_no_revision_repeats_that_was_given_after_the_dump(engine: Engine) -> None:
    record_invoice(engine, "acme", "1", {"version": 1})
    # given a change after the dump, of which the restored database knows nothing
    record_invoice(engine, "acme", "2", {"version": 1})
    ((lost,),) = rows(engine, "SELECT revision FROM taskbridge.records WHERE key = '2'")
    execute(engine, "DELETE FROM taskbridge.records WHERE key = '2'")
    execute(engine, "UPDATE taskbridge.taskbridge_cluster SET system_identifier = 1")
    engine.dispose()
    (before,) = rows(engine, "SELECT revision, xid::text FROM taskbridge.records")
    engine.dispose()
    assert rebase(engine)
    assert rows(engine, "SELECT revision FROM taskbridge.records") == [(before[0],)]
    record_invoice(engine, "acme", "1", {"version": 2})
    ((revision,),) = rows(engine, "SELECT revision FROM taskbridge.records")
    assert lost < revision < 2**53, "JSON's numbers hold it"
    # and the rebase's own right to set ids ended with it
    execute(engine, "UPDATE taskbridge.records SET xid = '3', revision = 1")
    assert rows(engine, "SELECT revision > 1, xid > '3' FROM taskbridge.records") == [(True, True)]
