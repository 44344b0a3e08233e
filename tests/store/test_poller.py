"""The poller finds every commit, and the reconciler what is pending, in whatever order transactions end."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from sqlalchemy import Connection, Engine

from taskbridge.common.run_key import RunKey
from taskbridge.store import Changes, ChangesPage, Claim, Cursors, Kind, record, register_pipeline
from taskbridge.store.poller import PLAN
from taskbridge.store.queries import LOCAL, query, setting

PIPELINE, SOURCE = "orders", "orders"
TOKEN = f"{1:016d}-aaaaaaaaaaaa"


@pytest.fixture
def changes(engine: Engine) -> Changes:
    """Of a pipeline whose poller has begun."""
    register_pipeline(engine, PIPELINE, SOURCE, "everything")
    begun = Changes(engine, 10.0)
    news(begun)
    return begun


@pytest.fixture
def cursors(engine: Engine) -> Cursors:
    return Cursors(engine, SOURCE)


@pytest.fixture
def other(engine: Engine) -> Iterator[Connection]:
    """A second session, whose transaction the test ends itself."""
    with engine.connect() as connection:
        yield connection


def news(changes: Changes) -> list[str]:
    """A pass of the poller: whom it would remind."""
    return round_of(changes, Kind.POLLER)


def reconciled(changes: Changes) -> list[str]:
    """A pass of the reconciler, after one of the poller: whom it would remind."""
    news(changes)
    return round_of(changes, Kind.RECONCILER)


def round_of(changes: Changes, kind: Kind, *, stores: bool = True) -> list[str]:
    """All pages, and what is to be tried again."""
    page = changes.read_page(kind, PIPELINE, SOURCE, 200)
    found = set(tenants(page))
    while page.until is not None:
        page = changes.read_page(kind, PIPELINE, SOURCE, 200, previous=page)
        found |= set(tenants(page))
    if stores:
        changes.store_page(kind, PIPELINE, page)
    if kind is Kind.RECONCILER:
        found.update(one.tenant for part in changes.retries(PIPELINE, SOURCE, 200) for one in part)
    return sorted(found)


def tenants(found: ChangesPage) -> list[str]:
    return sorted(one.tenant for one in found.waiting)


def insert(where: Connection | Engine, tenant: str, key: str) -> None:
    """A plain INSERT, as any program may make it."""
    text = "INSERT INTO taskbridge.records (source, tenant, key, document) VALUES ('orders', %s, %s, '{}')"
    if isinstance(where, Connection):
        where.exec_driver_sql(text, (tenant, key))
    else:
        with where.begin() as connection:
            connection.exec_driver_sql(text, (tenant, key))


def key(tenant: str) -> RunKey:
    return RunKey(PIPELINE, tenant, TOKEN)


def handle(cursors: Cursors, tenant: str, limit: int = 100, batches: int = 100) -> None:
    """Claim, and deliver up to so many batches to nobody."""
    page = cursors.claim(Claim(key(tenant), limit, events=1, runs=1))
    for _ in range(batches):
        if page.moves_cursor:
            with cursors.transaction(key(tenant)) as transaction:
                transaction.advance(transaction.move(page))
        if page.finished:
            return
        page = cursors.read(key(tenant), limit)


def stored(engine: Engine) -> str:
    with engine.connect() as connection:
        return str(
            connection.exec_driver_sql("SELECT snapshot::text FROM taskbridge.tails WHERE kind = 'tail'").scalar_one()
        )


def test_a_commit_that_comes_late_is_found_and_a_rollback_is_not(
    engine: Engine, changes: Changes, other: Connection
) -> None:
    insert(other, "late", "1")
    insert(engine, "early", "1")
    assert news(changes) == ["early"]
    assert news(changes) == []

    other.commit()
    assert news(changes) == ["late"]

    insert(other, "never", "1")
    insert(engine, "early", "2")
    other.rollback()
    assert news(changes) == ["early"]


def test_what_a_run_has_handled_or_looks_at_is_no_news(engine: Engine, changes: Changes, cursors: Cursors) -> None:
    insert(engine, "handled", "1")
    insert(engine, "looked at", "1")
    handle(cursors, "handled")
    handle(cursors, "looked at", batches=0)

    assert news(changes) == []
    assert reconciled(changes) == ["looked at"], "whoever looks may die with Redis"

    insert(engine, "looked at", "2")
    assert news(changes) == ["looked at"]


def test_records_of_other_sources_and_without_a_tenant_are_nobodys(engine: Engine, changes: Changes) -> None:
    record(engine, "elsewhere", "acme", "1", {})
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO taskbridge.records (source, key, document, reason) VALUES ('orders', '1', '{}', 'unmatched')"
        )

    assert news(changes) == []
    assert reconciled(changes) == []


def test_a_round_that_was_not_stored_is_made_again(engine: Engine, changes: Changes) -> None:
    insert(engine, "acme", "1")
    first = changes.read_page(Kind.POLLER, PIPELINE, SOURCE, 200)

    assert news(changes) == ["acme"]
    before = stored(engine)
    changes.store_page(Kind.POLLER, PIPELINE, first)
    assert stored(engine) == before, "another pass has stored meanwhile"


def test_delay_and_last_run_come_with_a_tenant(engine: Engine, changes: Changes, cursors: Cursors) -> None:
    insert(engine, "acme", "1")
    handle(cursors, "acme")
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO taskbridge.records (source, tenant, key, document, delay_ms) "
            "VALUES ('orders', 'acme', '2', '{}', 60000), ('orders', 'acme', '3', '{}', 5000)"
        )
        last = connection.exec_driver_sql(
            "SELECT (extract(epoch FROM last_taken_at) * 1000)::bigint FROM taskbridge.sync_cursors"
        ).scalar_one()

    for kind in Kind:
        found = changes.read_page(kind, PIPELINE, SOURCE, 7000)
        changes.store_page(kind, PIPELINE, found)
        assert found.waiting == [("acme", 5000, last)]
    insert(engine, "acme", "4")
    assert changes.read_page(Kind.POLLER, PIPELINE, SOURCE, 10).waiting == [("acme", 10, last)], "one without a delay"


# The reconciler


def test_the_base_finds_what_the_poller_has_seen_until_it_is_handled(
    engine: Engine, changes: Changes, cursors: Cursors
) -> None:
    insert(engine, "acme", "1")
    news(changes)

    assert reconciled(changes) == ["acme"]
    assert reconciled(changes) == ["acme"]
    handle(cursors, "acme", limit=1, batches=0)
    assert reconciled(changes) == ["acme"]
    handle(cursors, "acme")
    assert reconciled(changes) == []
    insert(engine, "acme", "2")
    assert reconciled(changes) == ["acme"]


def test_the_rest_of_a_sweep_stays_in_the_reconciler(engine: Engine, changes: Changes, cursors: Cursors) -> None:
    for number in "123":
        insert(engine, "acme", number)
    handle(cursors, "acme", limit=1, batches=1)

    assert reconciled(changes) == ["acme"]
    handle(cursors, "acme")
    assert reconciled(changes) == []


def test_a_record_that_is_to_be_tried_again_is_found_by_the_reconciler(
    engine: Engine, changes: Changes, cursors: Cursors
) -> None:
    insert(engine, "acme", "1")
    handle(cursors, "acme")
    reconciled(changes)
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO taskbridge.quarantine (pipeline, tenant, external_id, revision, reason, retry_at) "
            "SELECT 'orders', 'acme', '1', revision, 'bad', now() FROM taskbridge.records"
        )

    assert reconciled(changes) == ["acme"]
    handle(cursors, "acme")
    assert reconciled(changes) == []


def test_a_new_pipeline_begins_where_it_was_told_to(engine: Engine, changes: Changes) -> None:
    insert(engine, "acme", "1")
    register_pipeline(engine, "from now on", SOURCE, "now")
    register_pipeline(engine, "everything", SOURCE, "everything")

    for begun in ("from now on", "everything"):
        assert tenants(changes.read_page(Kind.POLLER, begun, SOURCE, 200)) == [], (
            "its poller begins behind what is there"
        )
    assert tenants(changes.read_page(Kind.RECONCILER, "from now on", SOURCE, 200)) == []
    assert tenants(changes.read_page(Kind.RECONCILER, "everything", SOURCE, 200)) == ["acme"]
    insert(engine, "b", "1")
    for begun in ("from now on", "everything"):
        assert tenants(changes.read_page(Kind.POLLER, begun, SOURCE, 200)) == ["b"]


def test_snapshots_of_another_cluster_begin_anew(engine: Engine, changes: Changes) -> None:
    insert(engine, "acme", "1")
    news(changes)
    reconciled(changes)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE taskbridge.tails SET snapshot = '9999999999:9999999999:'")
    insert(engine, "b", "1")

    assert news(changes) == []
    assert reconciled(changes) == ["acme", "b"]
    insert(engine, "c", "1")
    assert news(changes) == ["c"]


def test_a_round_takes_no_transaction_id(engine: Engine, changes: Changes) -> None:
    news(changes)

    def next_id() -> int:
        with engine.connect() as connection:
            return int(connection.exec_driver_sql("SELECT pg_snapshot_xmax(pg_current_snapshot())::text").scalar_one())

    def ids_of_two_rounds() -> int:
        before = next_id()
        changes.read_page(Kind.POLLER, PIPELINE, SOURCE, 200)
        changes.read_page(Kind.RECONCILER, PIPELINE, SOURCE, 200)
        return next_id() - before

    # Autovacuum may take some at any time, and a pass would take one each time.
    assert min(ids_of_two_rounds() for _ in range(10)) == 0


# Random histories


def plain(engine: Engine, seen: str) -> list[str]:
    """What a scan of all records finds, with the plain condition and no index."""
    with engine.connect() as connection:
        return sorted(
            connection.exec_driver_sql(
                "SELECT DISTINCT r.tenant FROM taskbridge.records r "  # noqa: S608 - `seen` is of this file
                "LEFT JOIN taskbridge.sync_cursors c ON c.pipeline = 'orders' AND c.tenant = r.tenant "
                "WHERE r.source = 'orders' AND NOT pg_visible_in_snapshot(r.xid, coalesce(c.snapshot, '1:1:')) "
                f"AND {seen}"
            ).scalars()
        )


T_SEES = "pg_visible_in_snapshot(r.xid, (SELECT snapshot FROM taskbridge.tails WHERE kind = 'tail'))"
NO_RUN_LOOKED = "NOT coalesce(pg_visible_in_snapshot(r.xid, c.looked), false)"


WHAT_HAPPENS = ("insert", "insert", "nested", "commit", "commit", "prepare", "end", "run")


@pytest.mark.parametrize("page", [1, 3, 5_000])
@pytest.mark.parametrize(
    "seed", [7, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (*range(7), *range(8, 12)))]
)
def test_in_random_histories_rounds_find_what_a_plain_look_finds(  # noqa: C901 - an arm for each thing
    engine: Engine, changes: Changes, cursors: Cursors, seed: int, page: int
) -> None:
    draw = random.Random(seed)  # noqa: S311 - histories, no secrets
    numbers = iter(range(10_000))
    told: set[str] = set()
    reconciler_page: ChangesPage | None = None
    pages = Changes(engine, 10.0, page, most_open=draw.choice((0, 1, 4, 10_000)))
    prepared: list[str] = []
    with ExitStack() as stack:
        stack.callback(end_all, engine, prepared)
        sessions = [stack.enter_context(engine.connect()) for _ in range(3)]
        for _ in range(120):
            session, tenant = draw.choice(sessions), draw.choice("abcdef")
            match draw.choice((*WHAT_HAPPENS, "poll", "reconcile")):
                case "insert":
                    for _ in range(draw.choice((1, 1, 9))):
                        insert(session, draw.choice((tenant, tenant, draw.choice("abcdef"))), str(next(numbers)))
                case "nested":
                    nested = session.begin_nested()
                    insert(session, tenant, str(next(numbers)))
                    (nested.commit if draw.random() < 0.5 else nested.rollback)()
                case "commit":
                    (session.commit if draw.random() < 0.7 else session.rollback)()
                case "prepare" if len(prepared) < 5:
                    prepared.append(f"{seed}-{page}-{next(numbers)}")
                    session.exec_driver_sql(f"PREPARE TRANSACTION '{prepared[-1]}'")
                    session.rollback()
                case "end" if prepared:
                    end_prepared(engine, prepared.pop(draw.randrange(len(prepared))), commits=draw.random() < 0.7)
                case "run":
                    handle(cursors, tenant, limit=draw.choice((1, 2, 100)), batches=draw.choice((0, 1, 2, 100)))
                    told.discard(tenant)
                case "poll":
                    news = plain(engine, f"{NO_RUN_LOOKED} AND NOT {T_SEES}")
                    found = set(tenants(part := pages.read_page(Kind.POLLER, PIPELINE, SOURCE, 200)))
                    for _ in range(draw.choice((0, 1, 1_000))):  # a pass may end after any of its pages
                        if part.until is None or draw.random() < 0.5:
                            part = pages.store_page(Kind.POLLER, PIPELINE, part)
                        if part.until is None:
                            assert sorted(found) == news
                            break
                        part = pages.read_page(Kind.POLLER, PIPELINE, SOURCE, 200, previous=part)
                        found |= set(tenants(part))
                    told |= found
                    assert set(plain(engine, f"{NO_RUN_LOOKED} AND {T_SEES}")) <= told, "T hides nobody"
                case "reconcile":
                    if draw.random() < 0.8:
                        reconciler_page = pages.read_page(
                            Kind.RECONCILER, PIPELINE, SOURCE, 200, previous=reconciler_page
                        )
                    if draw.random() < 0.6 and reconciler_page is not None:
                        reconciler_page = pages.store_page(Kind.RECONCILER, PIPELINE, reconciler_page)
                    if reconciler_page is not None and reconciler_page.until is None:
                        reconciler_page = None
                    assert plain(engine, T_SEES) == round_of(changes, Kind.RECONCILER, stores=False), "B hides nobody"


def end_all(engine: Engine, prepared: list[str]) -> None:
    for name in prepared:
        end_prepared(engine, name, commits=False)


def end_prepared(engine: Engine, name: str, *, commits: bool) -> None:
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql(f"{'COMMIT' if commits else 'ROLLBACK'} PREPARED '{name}'")


@pytest.mark.parametrize(("tenants_of_50", "sizes"), [(1, [10, 20, 40]), (50, [10] * 6)])
def test_many_records_of_few_tenants_take_few_pages(
    engine: Engine, changes: Changes, tenants_of_50: int, sizes: list[int]
) -> None:
    reconciled(changes)
    pages, found, seen = Changes(engine, 10.0, page=10), None, []
    with engine.begin() as connection:
        for number in range(50):
            insert(connection, f"tenant {number % tenants_of_50}", str(number))
    while found is None or found.until is not None:
        found = pages.store_page(
            Kind.POLLER, PIPELINE, pages.read_page(Kind.POLLER, PIPELINE, SOURCE, 200, previous=found)
        )
        seen.append(found.size)
    assert seen == sizes
    assert round_of(changes, Kind.POLLER, stores=False) == []


@pytest.mark.parametrize("kind", [*Kind])
def test_a_page_may_end_inside_a_transaction_of_which_nothing_is_stored_before_its_end(
    engine: Engine, changes: Changes, cursors: Cursors, kind: Kind
) -> None:
    reconciled(changes)
    pages = Changes(engine, 10.0, page=2)
    with engine.begin() as connection:
        for tenant in "abcde":
            insert(connection, tenant, "1")
    insert(engine, "later", "1")
    if kind is Kind.RECONCILER:
        news(changes)

    everybody = [*"abcde", "later"]
    found = None
    for expected, left in ((["a", "b"], everybody), (["c", "d"], everybody), (["e", "later"], ["later"])):
        found = pages.read_page(kind, PIPELINE, SOURCE, 200, previous=found)
        assert tenants(found) == expected
        found = pages.store_page(kind, PIPELINE, found)
        # What is pending stays in the reconciler, whichever page it was in.
        assert round_of(changes, kind, stores=False) == (left if kind is Kind.POLLER else everybody)
    for tenant in "bcde":
        handle(cursors, tenant)
    news(changes)
    assert round_of(pages, Kind.RECONCILER) == ["a", "later"]
    handle(cursors, "a")
    assert round_of(pages, Kind.RECONCILER) == ["later"]
    assert round_of(changes, Kind.RECONCILER) == ["later"]


def test_a_base_snapshot_lists_so_many_transactions_at_the_most(
    engine: Engine, changes: Changes, cursors: Cursors
) -> None:
    news(changes)
    pages = Changes(engine, 10.0, page=2, most_open=3)
    for tenant in "abcdefgh":
        insert(engine, tenant, "1")
    news(changes)
    for _ in range(2):
        assert round_of(pages, Kind.RECONCILER) == [*"abcdefgh"]
        assert listed(engine) == 3
    for tenant in "abcdeg":
        handle(cursors, tenant)
    assert round_of(pages, Kind.RECONCILER) == ["f", "h"]
    assert listed(engine) == 2
    assert round_of(changes, Kind.RECONCILER) == ["f", "h"]


def listed(engine: Engine) -> int:
    with engine.connect() as connection:
        return int(
            connection.exec_driver_sql(
                "SELECT count(x) FROM taskbridge.tails t LEFT JOIN LATERAL pg_snapshot_xip(t.snapshot) x ON true "
                "WHERE t.kind = 'base'"
            ).scalar_one()
        )


def test_retries_are_asked_for_page_by_page_and_those_that_changed_are_left_out(engine: Engine) -> None:
    for tenant, number in ("a1", "a2", "a3", "b1", "c1", "d1"):
        record(engine, SOURCE, tenant, number, {})
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO taskbridge.quarantine (pipeline, tenant, external_id, revision, reason, retry_at) "
            "SELECT 'orders', tenant, key, revision, 'bad', CASE WHEN tenant <> 'c' THEN now() END "
            "FROM taskbridge.records"
        )
    record(engine, SOURCE, "b", "1", {"changed": True})
    pages = Changes(engine, 10.0, page=2)
    found = [[one.tenant for one in part] for part in pages.retries(PIPELINE, SOURCE, 200)]
    assert found == [["a"], ["a"], ["d"]]


def test_the_delays_of_another_pipeline_are_not_obeyed(engine: Engine, changes: Changes) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO taskbridge.records (source, tenant, key, document, delay_ms) "
            "VALUES ('orders', 'acme', '1', '{}', 3600000)"
        )
    (waiting,) = changes.read_page(Kind.POLLER, PIPELINE, SOURCE, 200, has_delays=False).waiting
    assert waiting.delay_ms == 200


# Plans

ROWS, TENANTS = 30_000, 3_000


@pytest.fixture
def seeded(engine: Engine, changes: Changes) -> Engine:
    """30,000 handled records of 3,000 tenants, then 40 new ones, and statistics from before all of them."""
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO taskbridge.records (source, tenant, key, document) "
            "SELECT 'orders', 'tenant-' || n %% %(tenants)s, n::text, '{}' FROM generate_series(1, %(rows)s) n",
            {"rows": ROWS, "tenants": TENANTS},
        )
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO taskbridge.sync_cursors (pipeline, tenant, owner, snapshot) "
            "SELECT 'orders', 'tenant-' || n, 't', pg_current_snapshot() FROM generate_series(0, %(tenants)s - 1) n",
            {"tenants": TENANTS},
        )
    news(changes)
    reconciled(changes)
    for number in range(40):
        insert(engine, f"tenant-{number}", "new")
    return engine


def nodes(top: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if top["Actual Loops"]:
        yield top
        for below in top.get("Plans", ()):
            yield from nodes(below)


def test_a_round_reads_what_is_new_and_nothing_else_whether_or_not_there_are_statistics(seeded: Engine) -> None:
    for kind in Kind:
        reads_what_is_new(seeded, kind)
    with seeded.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("VACUUM ANALYZE taskbridge.records, taskbridge.sync_cursors")
    for kind in Kind:
        reads_what_is_new(seeded, kind)


def reads_what_is_new(seeded: Engine, kind: Kind) -> None:
    with seeded.connect() as connection:
        for name, value in PLAN.items():
            connection.exec_driver_sql(setting(name, value, LOCAL))
        values = {"pipeline": PIPELINE, "kind": kind.value, "source": SOURCE, "smallest": 200, "has_delays": True}
        values |= {"after_xid": "0", "after_id": -1, "size": 5_000, "every": kind is Kind.POLLER, "with_paused": False}
        found = connection.exec_driver_sql(
            f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {query('pass_page')}", values
        ).scalar_one()
    top = (found if isinstance(found, list) else json.loads(found))[0]["Plan"]

    scans = [node for node in nodes(top) if node.get("Relation Name") in ("records", "sync_cursors")]
    assert {node["Node Type"] for node in scans} <= {"Index Scan", "Index Only Scan"}
    assert sum(node["Actual Rows"] * node["Actual Loops"] for node in scans) <= 200
    assert top["Shared Hit Blocks"] + top["Shared Read Blocks"] < 1_500
