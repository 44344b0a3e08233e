"""Only triggers set transaction ids and revisions: no caller makes a record pass for handled, or uses one twice."""

from __future__ import annotations

from sqlalchemy import Engine

from taskbridge.declaring.batch import Record
from taskbridge.store import Cursors, rebase, record_invoice
from tests.store.adopting import rows, run
from tests.store.sweeping import sweep, write

DELETE = "DELETE FROM taskbridge.records"
SAVE = "CREATE TABLE backup AS SELECT * FROM taskbridge.records"
COPY_BACK = "INSERT INTO taskbridge.records SELECT * FROM public.backup"


def handled(engine: Engine) -> list[Record]:
    """What a sweep delivers."""
    return [record for page in sweep(Cursors(engine)) for record in page.records]


def test_what_is_deleted_and_written_anew_or_copied_back_is_pending_under_a_new_key(engine: Engine) -> None:
    write(engine, "1")
    run(engine, SAVE)
    found = handled(engine)
    run(engine, DELETE, COPY_BACK)
    found += handled(engine)
    run(engine, DELETE)
    write(engine, "1")
    found += handled(engine)
    assert [record.document for record in found] == [{"version": 1}] * 3
    revisions = [record.revision for record in found]
    assert revisions == sorted(revisions)
    assert len({record.idempotency_key for record in found}) == 3


def test_rows_of_a_replica_have_this_clusters_ids_and_not_the_publishers(engine: Engine) -> None:
    # given rows of a publisher that counts fewer transactions: its ids lie before every cursor here
    write(engine, "1", "2")
    run(engine, SAVE, f"{DELETE} WHERE key = '1'", "UPDATE backup SET xid = '3'")
    handled(engine)
    # when they come as logical replication applies them
    changed = "UPDATE taskbridge.records SET recorded_at = recorded_at - interval '1 day', xid = '3' WHERE key = '2'"
    replica = "SET LOCAL session_replication_role = replica; SET LOCAL search_path = ''"
    run(engine, f"{replica}; {COPY_BACK} WHERE key = '1'; {changed}")
    # then both are pending
    assert sorted(record.external_id for record in handled(engine)) == ["1", "2"]
    assert rows(engine, "SELECT count(*) FROM taskbridge.records WHERE xid = '3'") == [(0,)]


def test_after_a_rebase_no_revision_repeats_that_was_given_after_the_dump(engine: Engine) -> None:
    # given a change after the dump, of which the restored database knows nothing
    write(engine, "1", "2")
    ((before,), (lost,)) = rows(engine, "SELECT revision FROM taskbridge.records ORDER BY key")
    run(engine, f"{DELETE} WHERE key = '2'", "UPDATE taskbridge.taskbridge_cluster SET system_identifier = 1")
    engine.dispose()
    assert rebase(engine)
    assert rows(engine, "SELECT revision FROM taskbridge.records") == [(before,)]
    record_invoice(engine, "acme", "1", {"version": 2})
    ((revision,),) = rows(engine, "SELECT revision FROM taskbridge.records")
    assert lost < revision < 2**53, "JSON's numbers hold it"
    # and the rebase's own right to set ids ended with it
    run(engine, "UPDATE taskbridge.records SET xid = '3', revision = 1")
    assert rows(engine, "SELECT revision > 1, xid > '3' FROM taskbridge.records") == [(True, True)]
