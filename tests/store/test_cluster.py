"""Restored into another cluster, no record is lost or delivered again, however the two count transactions."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

import psycopg
import pytest
from sqlalchemy import Engine
from sqlalchemy.exc import DatabaseError

from taskbridge.common.server_errors import translated_errors
from taskbridge.declaring.criteria import Match, Unmatched
from taskbridge.embedded import Servers, serve
from taskbridge.errors import ForeignCluster, Unavailable
from taskbridge.store import (
    CursorLost,
    Cursors,
    Rebased,
    Records,
    StaleToken,
    check_cluster,
    in_its_cluster,
    migrate,
    rebase,
    record_invoice,
    register_pipeline,
)
from taskbridge.testing.servers import open_directory
from tests import quarantined
from tests.store.adopting import rows, run
from tests.store.restoring import dump, empty_database, next_xid, restore, use_up
from tests.store.sweeping import NEW, OLD, advance, batch, claim, write

INVOICES, MIRROR, ALERTS = "invoices", "mirror", "alerts"
LATER: Final = 20_000
"""Transaction ids between the first and the last records."""

States = dict[tuple[str, str, str], str]


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[Servers]:
    """Another cluster than that of the session."""
    with open_directory() as directory, serve(directory / "other", durable=False) as started:
        yield started


@pytest.fixture
def restored(elsewhere: Servers) -> Iterator[Engine]:
    """A database of the other cluster, empty as yet."""
    with empty_database(elsewhere) as engine:
        yield engine


def cursors(engine: Engine, pipeline: str) -> Cursors:
    return Cursors(engine, ALERTS if pipeline == ALERTS else INVOICES)


def handle(engine: Engine, pipeline: str, tenant: str, limit: int = 100, token: str = OLD) -> list[str]:
    """One batch, delivered to nobody."""
    return batch(cursors(engine, pipeline), limit, pipeline=pipeline, tenant=tenant, token=token)


def message(engine: Engine, message_id: str, tenant: str | None) -> None:
    found = Unmatched("no criterion") if tenant is None else Match(tenant, 1000, "$.level")
    Records(engine, ALERTS).write(message_id, "{}", found)


def put_in_quarantine(engine: Engine, pipeline: str, number: str, **times: Any) -> None:
    quarantined.put_in_quarantine(engine, "acme", number, pipeline=pipeline, attempts=5, **times)


def states(engine: Engine) -> States:
    found = rows(engine, "SELECT pipeline, tenant, external_id, state FROM taskbridge.record_states")
    return {(pipeline, tenant, number): state for pipeline, tenant, number, state in found}


def revisions(engine: Engine) -> list[tuple[Any, ...]]:
    return rows(
        engine,
        "SELECT source, tenant, key, revision, document::text, reason FROM taskbridge.records ORDER BY 1, 2, 3",
    )


def set_the_scene(engine: Engine) -> None:
    """Records in every state, in two pipelines that read invoices and in one with criteria, early and late ones."""
    for pipeline, source in ((INVOICES, INVOICES), (MIRROR, INVOICES), (ALERTS, ALERTS)):
        register_pipeline(engine, pipeline, source)
    write(engine, *"abcdhefi")
    write(engine, *"ab", tenant="globex")
    write(engine, *"ab", tenant="initech")
    message(engine, "m1", "billing")
    message(engine, "m2", None)
    for pipeline, tenant in ((MIRROR, "acme"), (INVOICES, "globex"), (ALERTS, "billing")):
        handle(engine, pipeline, tenant)
    claim(cursors(engine, INVOICES), tenant="umbrella")
    with engine.connect() as late:
        record_invoice(engine, "globex", "late", {}, late)
        use_up(engine, next_xid(engine) + LATER)
        write(engine, "c", tenant="globex")
        handle(engine, INVOICES, "globex")
        late.commit()
    assert handle(engine, INVOICES, "acme", limit=5) == list("abcdh")
    write(engine, "g")
    now = datetime.now(UTC)
    put_in_quarantine(engine, INVOICES, "h", discarded_at=now)
    write(engine, *"hi", version=2)
    write(engine, "a", tenant="umbrella")
    message(engine, "m3", "billing")
    put_in_quarantine(engine, INVOICES, "b")
    put_in_quarantine(engine, INVOICES, "c", discarded_at=now)
    put_in_quarantine(engine, INVOICES, "d", retry_at=now)
    put_in_quarantine(engine, MIRROR, "e")
    run(
        engine,
        "INSERT INTO taskbridge.runs (pipeline, tenant, token, began_at, ended_at, reason, worker, events, burst_run, "
        "records, rejected, outcome, snapshot) "
        "VALUES ('invoices', 'acme', 't', now(), now(), 'event', 'w', 1, 1, 1, 0, 'handled', '5:5:')",
    )


SCENE: Final = {
    (INVOICES, "acme"): {"a": "handled", "b": "quarantined", "c": "discarded"} | dict.fromkeys("defghi", "pending"),
    (MIRROR, "acme"): dict.fromkeys("abcdf", "handled") | {"e": "quarantined"} | dict.fromkeys("ghi", "pending"),
    (INVOICES, "globex"): {"a": "handled", "b": "handled", "c": "handled", "late": "pending"},
    (MIRROR, "globex"): dict.fromkeys(("a", "b", "c", "late"), "pending"),
    (INVOICES, "initech"): dict.fromkeys("ab", "pending"),
    (MIRROR, "initech"): dict.fromkeys("ab", "pending"),
    (INVOICES, "umbrella"): {"a": "pending"},
    (MIRROR, "umbrella"): {"a": "pending"},
    (ALERTS, "billing"): {"m1": "handled", "m3": "pending"},
}
EXPECTED: Final[States] = {
    (pipeline, tenant, number): state for (pipeline, tenant), of in SCENE.items() for number, state in of.items()
}


@pytest.mark.parametrize("counts", ["fewer", "as many as half of the records", "more"])
def test_every_record_keeps_its_state_in_a_cluster_that_counts(counts: str, engine: Engine, restored: Engine) -> None:
    # given a database whose first and last transaction ids lie apart, restored where the next one is below, between or
    # above them
    use_up(engine, next_xid(restored) + 5_000)
    first = next_xid(engine)
    set_the_scene(engine)
    before = revisions(engine)
    assert states(engine) == EXPECTED
    last = next_xid(engine)
    use_up(restored, {"fewer": 0, "more": last + 5_000}.get(counts, first + LATER // 2))
    restore(dump(engine), restored)
    assert (next_xid(restored) > first, next_xid(restored) > last) == (counts != "fewer", counts == "more")
    # then nobody works there
    with pytest.raises(ForeignCluster, match=r"another cluster.*: stop all .* `taskbridge migrate --rebase`"):
        check_cluster(restored)
    for refused in ("new", "a"):
        with pytest.raises(ForeignCluster, match="run `taskbridge migrate --rebase`"), translated_errors():
            record_invoice(restored, "acme", refused, {"version": 3})
    with pytest.raises(ForeignCluster), translated_errors():
        message(restored, "m4", "billing")
    # when it is rebased
    done = rebase(restored)
    # then all is as it was
    check_cluster(restored)
    assert states(restored) == EXPECTED
    assert revisions(restored) == before
    assert done is not None
    assert done.quarantined == {INVOICES: 7, MIRROR: 3, ALERTS: 1}
    assert done.cursors == 5
    assert set(rows(restored, "SELECT owner, target, at_xid, at_id FROM taskbridge.sync_cursors")) == {
        (OLD, None, None, None)
    }
    assert rows(restored, "SELECT records, snapshot FROM taskbridge.runs") == [(1, None)], "without its place"
    kept = "SELECT * FROM taskbridge.quarantine WHERE attempts = 5 AND external_id <> 'h' ORDER BY external_id"
    assert rows(restored, kept) == rows(engine, kept)
    # and doing it again changes nothing
    everything = quarantine_and_cursors(restored)
    assert rebase(restored) is None
    assert quarantine_and_cursors(restored) == everything
    # and work goes on
    goes_on(restored)


def quarantine_and_cursors(engine: Engine) -> list[tuple[Any, ...]]:
    return rows(engine, "SELECT * FROM taskbridge.quarantine") + rows(engine, "SELECT * FROM taskbridge.sync_cursors")


def pending(engine: Engine, pipeline: str, tenant: str) -> set[str]:
    return {at[2] for at, state in states(engine).items() if at[:2] == (pipeline, tenant) and state == "pending"}


def goes_on(engine: Engine) -> None:
    """New and changed records are delivered, and no handled one is; older tokens are still refused."""
    for tenant in {tenant for _, tenant in SCENE if tenant != "billing"}:
        write(engine, *"xy", tenant=tenant)
    write(engine, "a", version=3)
    message(engine, "m5", "billing")
    for pipeline, tenant in SCENE:
        news = {"m5"} if pipeline == ALERTS else {"x", "y"} | ({"a"} if tenant == "acme" else set())
        before = pending(engine, pipeline, tenant)
        assert news <= before
        delivered = handle(engine, pipeline, tenant, token=NEW)
        assert len(delivered) == len(set(delivered))
        assert news <= set(delivered) <= before
        assert pending(engine, pipeline, tenant).isdisjoint(news)
        with pytest.raises(StaleToken):
            handle(engine, pipeline, tenant, token=OLD)


def test_a_data_only_restore_is_noticed_by_the_identifier_that_came_along(engine: Engine, restored: Engine) -> None:
    set_the_scene(engine)
    migrate(restored)
    use_up(restored, next_xid(engine) + 1_000)
    restore(dump(engine, "--data-only", "--exclude-table=taskbridge.taskbridge_schema"), restored, keep_ids=True)
    with pytest.raises(ForeignCluster):
        check_cluster(restored)
    with pytest.raises(ForeignCluster), translated_errors():
        record_invoice(restored, "acme", "new", {})
    assert rebase(restored)
    assert states(restored) == EXPECTED


def test_a_restore_of_some_tables_is_noticed_by_cursors_from_the_future(engine: Engine, restored: Engine) -> None:
    use_up(engine, next_xid(restored) + 5_000)
    write(engine, *"ab")
    assert handle(engine, INVOICES, "acme", limit=1) == ["a"]
    migrate(restored)
    register_pipeline(restored, INVOICES, INVOICES)
    restore(
        dump(engine, "--data-only", "--table=taskbridge.records", "--table=taskbridge.sync_cursors"),
        restored,
        keep_ids=True,
    )
    with pytest.raises(ForeignCluster):
        check_cluster(restored)
    assert rebase(restored) == Rebased({INVOICES: 1}, 2, 1)
    assert states(restored) == {(INVOICES, "acme", "a"): "handled", (INVOICES, "acme", "b"): "pending"}


def test_an_identifier_that_got_lost_counts_as_foreign(engine: Engine) -> None:
    run(engine, "DELETE FROM taskbridge.taskbridge_cluster")
    assert not in_its_cluster(engine)
    with pytest.raises(DatabaseError) as refused:
        record_invoice(engine, "acme", "1", {})
    assert isinstance(refused.value.orig, psycopg.Error)
    assert refused.value.orig.sqlstate == "TB001"


@pytest.fixture
def foreign(engine: Engine) -> Engine:
    """The scene, as it would lie in another cluster."""
    set_the_scene(engine)
    run(engine, "UPDATE taskbridge.taskbridge_cluster SET system_identifier = 1")
    engine.dispose()  # more than one connection was in use, and each would count as somebody else's
    return engine


def test_a_batch_that_was_read_before_takes_no_effect_after(foreign: Engine) -> None:
    page = claim(cursors(foreign, INVOICES), limit=1)
    assert rebase(foreign)
    with pytest.raises(CursorLost):
        advance(cursors(foreign, INVOICES), page)
    assert states(foreign) == EXPECTED


def test_a_process_that_is_connected_is_named_and_nothing_changes(foreign: Engine) -> None:
    other = Engine(foreign.pool.recreate(), foreign.dialect, foreign.url)
    with other.connect() as connection:
        pid = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
        with pytest.raises(Unavailable, match=rf"pids: {pid}\): stop workers"):
            rebase(foreign)
    other.dispose()
    assert not in_its_cluster(foreign)


def test_a_rebase_that_fails_at_its_end_changes_nothing(foreign: Engine) -> None:
    run(foreign, "ALTER TABLE taskbridge.sync_cursors ADD CONSTRAINT half CHECK (sweeps = 0) NOT VALID")
    ids = "SELECT xid::text FROM taskbridge.records"
    before = quarantine_and_cursors(foreign) + rows(foreign, ids)
    with pytest.raises(DatabaseError, match="half"):
        rebase(foreign)
    assert not in_its_cluster(foreign)
    assert before == quarantine_and_cursors(foreign) + rows(foreign, ids)
