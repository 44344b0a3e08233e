"""The poller finds every commit, and the reconciler what is pending, in whatever order transactions end."""

from __future__ import annotations

import random
from contextlib import ExitStack

import pytest
from sqlalchemy import Connection, Engine

from taskbridge.store import Changes, ChangesPage, Cursors, Kind, record, register_pipeline
from taskbridge.store.poller import PLAN
from taskbridge.store.queries import LOCAL, setting
from tests.store.adopting import rows, run
from tests.store.plans import analyze, fill, pages, plan, scans
from tests.store.sweeping import advance, claim, key

PIPELINE, SOURCE = "orders", "orders"


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


def insert(where: Connection | Engine, tenant: str, number: str) -> None:
    """A plain INSERT, as any program may make it."""
    statement = f"{INSERT} VALUES ('orders', '{tenant}', '{number}', '{{}}')"
    if isinstance(where, Connection):
        where.exec_driver_sql(statement)
    else:
        run(where, statement)


INSERT = "INSERT INTO taskbridge.records (source, tenant, key, document)"
INSERT_DELAYED = "INSERT INTO taskbridge.records (source, tenant, key, document, delay_ms)"


def handle(cursors: Cursors, tenant: str, limit: int = 100, batches: int = 100) -> None:
    """Claim, and deliver up to so many batches to nobody."""
    who = {"tenant": tenant, "pipeline": PIPELINE}
    page = claim(cursors, limit, **who)
    for _ in range(batches):
        if page.moves_cursor:
            advance(cursors, page, **who)
        if page.finished:
            return
        page = cursors.read(key(**who), limit)


def test_records_of_other_sources_and_without_a_tenant_are_nobodys(engine: Engine, changes: Changes) -> None:
    record(engine, "elsewhere", "acme", "1", {})
    run(
        engine,
        "INSERT INTO taskbridge.records (source, key, document, reason) VALUES ('orders', '1', '{}', 'unmatched')",
    )

    assert news(changes) == []
    assert reconciled(changes) == []


def test_a_round_that_was_not_stored_is_made_again(engine: Engine, changes: Changes) -> None:
    insert(engine, "acme", "1")
    first = changes.read_page(Kind.POLLER, PIPELINE, SOURCE, 200)

    assert news(changes) == ["acme"]
    stored = "SELECT snapshot::text FROM taskbridge.tails WHERE kind = 'tail'"
    before = rows(engine, stored)
    changes.store_page(Kind.POLLER, PIPELINE, first)
    assert rows(engine, stored) == before, "another pass has stored meanwhile"


def test_delay_and_last_run_come_with_a_tenant(engine: Engine, changes: Changes, cursors: Cursors) -> None:
    insert(engine, "acme", "1")
    handle(cursors, "acme")
    run(
        engine, f"{INSERT_DELAYED} VALUES ('orders', 'acme', '2', '{{}}', 60000), ('orders', 'acme', '3', '{{}}', 5000)"
    )
    ((last,),) = rows(engine, "SELECT (extract(epoch FROM last_taken_at) * 1000)::bigint FROM taskbridge.sync_cursors")

    for kind in Kind:
        found = changes.read_page(kind, PIPELINE, SOURCE, 7000)
        changes.store_page(kind, PIPELINE, found)
        assert found.waiting == [("acme", 5000, last)]
    insert(engine, "acme", "4")
    assert changes.read_page(Kind.POLLER, PIPELINE, SOURCE, 10).waiting == [("acme", 10, last)], "one without a delay"


def test_the_delays_of_another_pipeline_are_not_obeyed(engine: Engine, changes: Changes) -> None:
    run(engine, f"{INSERT_DELAYED} VALUES ('orders', 'acme', '1', '{{}}', 3600000)")
    (waiting,) = changes.read_page(Kind.POLLER, PIPELINE, SOURCE, 200, has_delays=False).waiting
    assert waiting.delay_ms == 200


def test_snapshots_of_another_cluster_begin_anew(engine: Engine, changes: Changes) -> None:
    insert(engine, "acme", "1")
    news(changes)
    reconciled(changes)
    run(engine, "UPDATE taskbridge.tails SET snapshot = '9999999999:9999999999:'")
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


def plain(engine: Engine, seen: str) -> list[str]:
    """What a scan of all records finds, with the plain condition and no index."""
    statement = (
        "SELECT DISTINCT r.tenant FROM taskbridge.records r "  # noqa: S608 - `seen` is of this file
        "LEFT JOIN taskbridge.sync_cursors c ON c.pipeline = 'orders' AND c.tenant = r.tenant "
        "WHERE r.source = 'orders' AND NOT pg_visible_in_snapshot(r.xid, coalesce(c.snapshot, '1:1:')) "
        f"AND {seen}"
    )
    return sorted(tenant for (tenant,) in rows(engine, statement))


T_SEES = "pg_visible_in_snapshot(r.xid, (SELECT snapshot FROM taskbridge.tails WHERE kind = 'tail'))"
LISTED = "SELECT count(*) FROM taskbridge.tails, pg_snapshot_xip(snapshot) WHERE kind = 'base'"
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


def test_a_base_snapshot_lists_so_many_transactions_at_the_most(
    engine: Engine, changes: Changes, cursors: Cursors
) -> None:
    reconciled(changes)
    pages = Changes(engine, 10.0, page=2, most_open=3)
    for tenant in "abcdefgh":
        insert(engine, tenant, "1")
    news(changes)
    for _ in range(2):
        assert round_of(pages, Kind.RECONCILER) == [*"abcdefgh"]
        assert rows(engine, LISTED) == [(3,)]
    for tenant in "abcdeg":
        handle(cursors, tenant)
    assert round_of(pages, Kind.RECONCILER) == ["f", "h"]


def test_retries_are_asked_for_page_by_page_and_those_that_changed_are_left_out(
    engine: Engine, changes: Changes, cursors: Cursors
) -> None:
    for tenant, number in ("a1", "a2", "a3", "b1", "c1", "d1"):
        record(engine, SOURCE, tenant, number, {})
    for tenant in "abcd":
        handle(cursors, tenant)
    run(
        engine,
        "INSERT INTO taskbridge.quarantine (pipeline, tenant, external_id, revision, reason, retry_at) "
        "SELECT 'orders', tenant, key, revision, 'bad', CASE WHEN tenant <> 'c' THEN now() END FROM taskbridge.records",
    )
    record(engine, SOURCE, "b", "1", {"changed": True})
    pages = Changes(engine, 10.0, page=2)
    found = [[one.tenant for one in part] for part in pages.retries(PIPELINE, SOURCE, 200)]
    assert found == [["a"], ["a"], ["d"]]
    for tenant in "abcd":
        handle(cursors, tenant)
    assert reconciled(changes) == []


def test_a_round_reads_what_is_new_and_nothing_else_whether_or_not_there_are_statistics(
    engine: Engine, changes: Changes
) -> None:
    # given 30,000 handled records of 3,000 tenants, then 40 new ones, and statistics from before all of them
    fill(engine, SOURCE, 30_000, 3_000)
    reconciled(changes)
    for number in range(40):
        insert(engine, f"tenant-{number}", "new")
    for kind in Kind:
        reads_what_is_new(engine, kind)
    analyze(engine, "records", "sync_cursors")
    for kind in Kind:
        reads_what_is_new(engine, kind)


def reads_what_is_new(engine: Engine, kind: Kind) -> None:
    values = {"pipeline": PIPELINE, "kind": kind.value, "source": SOURCE, "smallest": 200, "has_delays": True}
    values |= {"after_xid": "0", "after_id": -1, "size": 5_000, "every": kind is Kind.POLLER, "with_paused": False}
    with engine.connect() as connection:
        for name, value in PLAN.items():
            connection.exec_driver_sql(setting(name, value, LOCAL))
        top = plan(connection, "pass_page", values)
    found = scans(top, "records", "sync_cursors")
    assert {node["Node Type"] for node in found} <= {"Index Scan", "Index Only Scan"}
    assert sum(node["Actual Rows"] * node["Actual Loops"] for node in found) <= 200
    assert pages(top) < 1_500
