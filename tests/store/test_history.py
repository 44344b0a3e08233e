"""The run history says what runs did, only where it took effect, and it never keeps a run from its work."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from threading import Event, Thread
from typing import Any

import pytest
from sqlalchemy import Connection, Engine

from taskbridge.common.histogram import bucket
from taskbridge.common.log_throttle import LogThrottle
from taskbridge.common.run_key import RunKey
from taskbridge.declaring.batch import Batch
from taskbridge.store import CursorLost, Cursors, HistoryRow, forget_pipeline, keep_runs, sum_runs
from taskbridge.testing import drain
from taskbridge.worker import slot
from tests.deployment import Deployment
from tests.inline import Inline
from tests.store.adopting import rows, run
from tests.store.sweeping import OLD, claim, key, write
from tests.waiting import taking_at_most

ROW = HistoryRow("invoices", "acme", OLD, OLD, "event", "celery@here", 0.02, 1, 1, 1, 0, "handled", sweeps=1)


def history(engine: Engine, columns: str) -> list[tuple[Any, ...]]:
    return rows(engine, f"SELECT {columns} FROM taskbridge.runs ORDER BY tenant, token")  # noqa: S608 - our names


def fail(batch: Batch) -> None:
    raise RuntimeError(f"the service is away, at {batch[0].external_id}")


@pytest.fixture
def inline(deployment: Deployment) -> Inline:
    made = Inline(deployment)
    made.runtime.worker = "celery@here"
    return made


def handle(inline: Inline, *numbers: str) -> None:
    inline.deployment.save("acme", *numbers)
    inline.run_all()


def test_a_run_has_one_row_however_many_batches_it_takes(inline: Inline) -> None:
    inline.handle(lambda _: None, batch_size=2)
    handle(inline, *map(str, range(5)))
    columns = "reason, worker, events, burst_run, records, rejected, outcome, error"
    assert history(inline.deployment.engine, columns) == [("event", "celery@here", 5, 1, 5, 0, "handled", None)]
    ((first, took),) = history(inline.deployment.engine, "first_event_ms, ended_at > began_at")
    assert first >= 0
    assert took
    (cursor,) = inline.deployment.rows("SELECT bursts, first_event_counts FROM taskbridge.sync_cursors")
    assert (cursor.bursts, sum(count or 0 for count in cursor.first_event_counts)) == (1, 1), "and one first event"


def test_a_run_that_fails_says_so_and_a_record_that_goes_to_quarantine_is_counted(inline: Inline) -> None:
    inline.handle(fail)
    inline.deployment.save("acme", "1")
    with pytest.raises(RuntimeError):
        inline.run_all()
    ((outcome, error, records),) = history(inline.deployment.engine, "outcome, error, records")
    assert (outcome, records) == ("failed", 0)
    assert error == "RuntimeError: the service is away, at 1"

    def reject(batch: Batch) -> None:
        batch.reject(batch[0], "no address")

    inline.handle(reject, pipeline="orders", source="invoices")
    inline.deployment.app.tasks["taskbridge.notify_event"].delay("acme", "orders")
    inline.run_all()
    found = "SELECT outcome, records, rejected FROM taskbridge.runs WHERE pipeline = 'orders'"
    assert rows(inline.deployment.engine, found) == [("handled", 1, 1)]


@pytest.mark.parametrize("does", ["nothing more", "writes", "rejects", "keeps a part"])
def test_of_a_token_that_began_twice_the_history_has_each_record_once(
    does: str, inline: Inline, caplog: pytest.LogCaptureFixture
) -> None:
    redis, runner = inline.deployment.redis, inline.runtime.keys.runner("invoices", "acme")
    calls: list[Batch] = []

    def first_fails_while_second_is_on(batch: Batch) -> None:
        calls.append(batch)
        if does == "writes":
            batch.connection.exec_driver_sql("SELECT")
        if does == "rejects" and len(calls) == 2:
            batch.reject(batch[0], "it lacks a total")
        if does == "keeps a part" and len(calls) == 2:
            second_is_on.set()
            assert first_has_failed.wait(10)
            batch.handled(batch[0])
            batch.reject(batch[1], "it lacks a total")
            fail(batch)
        if len(calls) == 1:
            # Redis comes back as it was before the run began, and its message comes again.
            redis.delete(runner)
            redis.hset(runner, mapping=began)
            second.start()
            assert second_is_on.wait(10)
            fail(batch)
        if len(calls) == 2:
            second_is_on.set()
            assert first_has_failed.wait(10)

    inline.handle(first_fails_while_second_is_on)
    numbers = "123" if does == "keeps a part" else "1"
    inline.deployment.save("acme", *numbers)
    began: Any = redis.hgetall(runner)
    message = inline.message()
    assert message is not None
    second_is_on, first_has_failed = Event(), Event()

    def run_again() -> None:
        with suppress(RuntimeError):
            slot.run_tenant(inline.runtime, *message)

    second = Thread(target=run_again)
    with pytest.raises(RuntimeError):
        slot.run_tenant(inline.runtime, *message)
    first_has_failed.set()
    second.join()
    engine, failures = inline.deployment.engine, "SELECT failures FROM taskbridge.sync_cursors"
    assert rows(engine, failures) == [(int(does == "keeps a part"),)]
    # What was not handled comes again.
    inline.runtime.runs_by_hand = True
    drain("acme", app=inline.deployment.app)
    assert sum(row[0] for row in history(engine, "records")) == len(numbers)
    assert rows(engine, "SELECT records FROM taskbridge.sync_cursors") == [(len(numbers),)]
    assert "history cannot be written" not in caplog.text


def test_runs_that_advance_together_have_a_row_each(inline: Inline) -> None:
    inline.handle(lambda _: None)
    for tenant in ("acme", "globex", "initech"):
        inline.deployment.save(tenant, "1")
    messages = list(iter(inline.message, None))
    assert slot.run_together(inline.runtime, [RunKey(*message) for message in messages]) == [None] * 3
    assert history(inline.deployment.engine, "tenant, records, worker") == [
        (tenant, 1, "celery@here") for tenant in ("acme", "globex", "initech")
    ]


def test_with_0_days_nothing_is_written(inline: Inline) -> None:
    inline.handle(lambda _: None)
    inline.runtime.settings = replace(inline.runtime.settings, history_days=0)
    handle(inline, "1")
    inline.handle(fail)
    inline.deployment.save("acme", "2")
    with pytest.raises(RuntimeError):
        inline.run_all()
    assert history(inline.deployment.engine, "*") == []


def test_a_batch_that_took_no_effect_has_no_row(engine: Engine) -> None:
    cursors = Cursors(engine)
    write(engine, "1")
    page = claim(cursors)
    elsewhere = replace(page, sweeps=page.sweeps + 1)
    with pytest.raises(CursorLost), cursors.transaction(key()) as transaction:
        transaction.advance(transaction.move(elsewhere, row=ROW))
    with cursors.transaction(key()) as transaction:
        transaction.connect()
        with pytest.raises(CursorLost):
            transaction.advance(transaction.move(elsewhere, row=ROW))
    assert history(engine, "*") == []
    with cursors.transaction(key()) as transaction:
        transaction.connect()
        transaction.advance(transaction.move(page, row=ROW))
    assert history(engine, "token, events, records") == [(OLD, 1, 1)]


def partitions(engine: Engine) -> list[str]:
    parts = "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'taskbridge.runs'::regclass ORDER BY 1"
    return [name for (name,) in rows(engine, parts)]


def drop_partitions(engine: Engine) -> None:
    """Drop the partitions of days, as if no worker had run for days."""
    run(engine, *(f"DROP TABLE {name}" for name in partitions(engine) if name != OTHER))


def named(*ahead: int) -> list[str]:
    today = datetime.now(UTC).date()
    return [f"taskbridge.runs_{today + timedelta(days):%Y%m%d}" for days in ahead]


OTHER = "taskbridge.runs_other"


def insert(where: Engine | Connection, days_ago: float, **columns: Any) -> None:
    if isinstance(where, Engine):
        with where.begin() as connection:
            insert(connection, days_ago, **columns)
        return
    values: dict[str, Any] = {
        "pipeline": "invoices",
        "tenant": "acme",
        "token": OLD,
        "reason": "event",
        "worker": "celery@here",
    }
    values |= {"outcome": "handled", "events": 1, "burst_run": 1, "records": 1, "rejected": 0, **columns}
    where.exec_driver_sql(
        f"INSERT INTO taskbridge.runs (began_at, ended_at, {', '.join(values)}) "  # noqa: S608 - the test's own names
        f"SELECT at, at + interval '20 ms', {', '.join(['%s'] * len(values))} "
        "FROM (SELECT now() - %s * interval '1 day' AS at) t",
        (*values.values(), days_ago),
    )


def test_partitions_are_made_ahead_and_dropped_when_their_days_are_over(engine: Engine) -> None:
    # The migration may have run before midnight.
    assert len(partitions(engine)) == 4, "the migration created those of three days"
    drop_partitions(engine)
    keep_runs(engine, 7)
    assert partitions(engine) == [*named(0, 1, 2), OTHER]
    (old,) = named(-8)
    day = old[-8:]
    run(
        engine,
        f"CREATE TABLE {old} PARTITION OF taskbridge.runs FOR VALUES FROM ('{day} 00:00+00') TO ('{day} 23:59:59+00')",
    )
    keep_runs(engine, 9)
    assert old in partitions(engine)
    keep_runs(engine, 7)
    assert partitions(engine) == [*named(0, 1, 2), OTHER]
    keep_runs(engine, 0)
    assert partitions(engine) == [*named(0, 1, 2), OTHER], "today goes when it is over"


def test_a_run_of_a_day_without_a_partition_is_kept_and_who_writes_keeps_no_other_from_being_made(
    engine: Engine,
) -> None:
    drop_partitions(engine)
    insert(engine, 0, tenant="today")
    insert(engine, 9, tenant="old")
    keep_runs(engine, 7)
    assert partitions(engine) == [*named(1, 2), OTHER], "a day that has rows elsewhere stays there"
    assert history(engine, "tenant, tableoid::regclass::text") == [("today", OTHER)]
    run(engine, f"DROP TABLE {named(2)[0]}")
    with engine.begin() as writing:
        insert(writing, -1, tenant="tomorrow")
        keep_runs(engine, 7)
    assert partitions(engine) == [*named(1, 2), OTHER]


def test_who_looks_at_the_history_for_long_holds_up_no_run(engine: Engine) -> None:
    drop_partitions(engine)
    cursors = Cursors(engine)
    write(engine, "1")
    page = claim(cursors)
    insert(engine, 20 * MINUTE, tenant="summed")
    sum_runs(engine, "invoices")
    run(engine, "UPDATE taskbridge.run_minutes SET minute = minute - interval '30 days'")
    with engine.connect() as looking:
        looking.exec_driver_sql("SELECT FROM taskbridge.runs")
        keep_runs(engine, 7)
        assert partitions(engine) == [OTHER]
        assert minutes(engine, "minute") == [], "what needs no lock is done"
        with cursors.transaction(key()) as transaction:
            transaction.advance(transaction.move(page, row=ROW))
    keep_runs(engine, 7)
    assert {*named(1, 2)} <= {*partitions(engine)}
    assert ("acme", 1) in history(engine, "tenant, records")


def minutes(engine: Engine, columns: str) -> list[tuple[Any, ...]]:
    return rows(engine, f"SELECT {columns} FROM taskbridge.run_minutes ORDER BY minute")  # noqa: S608 - our names


MINUTE = 1 / 1440


def test_the_sums_of_a_minute_are_those_of_its_runs(engine: Engine) -> None:
    insert(engine, 0, tenant="now")
    insert(engine, 20 * MINUTE, tenant="a", first_event_ms=7, events=3)
    sum_runs(engine, "invoices")
    columns = "runs, failed, events, bursts, records, rejected, run_ms, first_event_ms_sum"
    assert minutes(engine, columns) == [(1, 0, 3, 1, 1, 0, 20, 7)], "a minute that is not over has no sums"

    # given later runs, and another pipeline's
    insert(engine, 5 * MINUTE, tenant="b", first_event_ms=10, records=4, rejected=1)
    insert(engine, 5 * MINUTE, tenant="c", burst_run=2, outcome="failed", records=0)
    insert(engine, 5 * MINUTE, tenant="d", pipeline="orders")
    sum_runs(engine, "invoices")
    sum_runs(engine, "invoices")
    found = minutes(engine, columns)
    assert found[0] == (1, 0, 3, 1, 1, 0, 20, 7)
    # the two may lie on both sides of a minute
    assert [sum(column) for column in zip(*found[1:], strict=True)] == [2, 1, 2, 1, 4, 1, 40, 10]
    counts = [
        sum(column) for column in zip(*(counts for (counts,) in minutes(engine, "first_event_counts")), strict=True)
    ]
    assert counts[bucket(7)] == 2
    assert sum(counts) == 2


def test_minutes_before_all_workers_stood_still_are_summed_when_one_is_back(engine: Engine) -> None:
    insert(engine, 600 * MINUTE)
    insert(engine, 500 * MINUTE, tenant="b")
    for summed in (1, 2, 2):
        sum_runs(engine, "invoices")
        assert len(minutes(engine, "minute")) == summed, "each call sums a part"


def test_a_forgotten_pipeline_has_no_history(engine: Engine) -> None:
    insert(engine, 20 * MINUTE)
    insert(engine, 20 * MINUTE, pipeline="orders")
    for pipeline in ("invoices", "orders"):
        sum_runs(engine, pipeline)
    run(engine, "INSERT INTO taskbridge.pipelines (pipeline, source) VALUES ('invoices', 'invoices')")
    forget_pipeline(engine, "invoices")
    assert history(engine, "pipeline") == minutes(engine, "pipeline") == [("orders",)]


@pytest.mark.parametrize(
    "reason", ["locked", "ALTER TABLE taskbridge.runs ADD CHECK (false) NOT VALID", "DROP TABLE taskbridge.runs"]
)
def test_a_history_that_cannot_be_written_keeps_nobody_from_work(
    inline: Inline, reason: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taskbridge.store.history._throttle", LogThrottle())
    engine = inline.deployment.engine
    with engine.connect() as holding:
        if reason == "locked":
            holding.exec_driver_sql("LOCK TABLE taskbridge.runs IN ACCESS EXCLUSIVE MODE")
        else:
            run(engine, reason)
        works_without_a_history(inline)
        write(engine, "1", tenant="other")
        cursors = Cursors(engine)
        page = claim(cursors, tenant="other")
        with cursors.transaction(key("other")) as transaction:
            transaction.connect().exec_driver_sql("INSERT INTO ledger (tenant) VALUES ('acme')")
            transaction.connect().exec_driver_sql("SET work_mem = '100MB'")
            transaction.advance(transaction.move(page, row=ROW._replace(tenant="other")))
        assert rows(engine, "SELECT count(*) FROM ledger") == [(1,)]
        assert rows(engine, "SHOW work_mem") != [("100MB",)], "nor is anything left of it"
    assert caplog.text.count("the run history cannot be written") == 1


def works_without_a_history(inline: Inline) -> None:
    inline.handle(lambda _: None)
    for tenant in ("acme", "globex", "initech"):
        inline.deployment.save(tenant, "1")
    messages = list(iter(inline.message, None))
    with taking_at_most(15):
        assert slot.run_together(inline.runtime, [RunKey(*message) for message in messages]) == [None] * 3
        handle(inline, "2")
    assert inline.seen == ["1", "1", "1", "2"], "each once"
    inline.handle(fail)
    inline.deployment.save("acme", "3")
    with pytest.raises(RuntimeError):
        inline.run_all()
    failures = "SELECT failures, last_error FROM taskbridge.sync_cursors WHERE tenant = 'acme'"
    assert rows(inline.deployment.engine, failures) == [(1, "RuntimeError: the service is away, at 3")]


def test_a_worker_keeps_the_history(deployment: Deployment) -> None:
    insert(deployment.engine, 20 * MINUTE, pipeline="invoices")
    # Before a worker is there: its poller may find the record before the event comes.
    deployment.save("acme", "1")
    with deployment.worker():
        deployment.wait_until_idle()
        status = deployment.gate.look("invoices", ["acme"])[0]
    ((reason, worker, records),) = [
        row for row in history(deployment.engine, "reason, worker, records") if row[1] != "celery@here"
    ]
    assert (reason, worker, records) == ("event", "worker-0@test", 1)
    assert status.worker in (None, "worker-0@test")
    assert {*named(1, 2)} <= {*partitions(deployment.engine)}
    assert len(minutes(deployment.engine, "minute")) == 1
