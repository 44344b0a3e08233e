"""Each event is counted once on its tenant's cursor and once in the run history, whatever happens to its run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from taskbridge.common.run_key import RunKey
from taskbridge.declaring.batch import Batch, RetryAfter
from taskbridge.gate import Answer, Begun, Outcome, Settlement
from taskbridge.handlers.journal import journal
from taskbridge.running.tail import tail_round
from taskbridge.store import Claim, Pauses, read_counters
from tests.failures.drill import BAD, NUMBERS, Drill
from tests.failures.test_runs_that_do_not_end import Killer
from tests.runs import begin, settle


def notify(drill: Drill, count: int = 1, tenant: str = "acme") -> None:
    for _ in range(count):
        drill.deployment.notify_event.delay(tenant)


def counted(drill: Drill) -> tuple[int, int, int]:
    """Events on the cursors, in the rows of the history, and those that the next rows have."""
    ((on_cursors, unnoted),) = drill.deployment.rows(
        "SELECT coalesce(sum(events), 0)::int, coalesce(sum(unnoted_events), 0)::int FROM taskbridge.sync_cursors"
    )
    ((in_rows,),) = drill.deployment.rows("SELECT coalesce(sum(events), 0)::int FROM taskbridge.runs")
    return on_cursors, in_rows, unnoted


def rows(drill: Drill) -> list[tuple[str, str, int, int, int]]:
    found = drill.deployment.rows(
        "SELECT reason, outcome, events, burst_run, records FROM taskbridge.runs ORDER BY token, outcome"
    )
    return [tuple(row) for row in found]


def ask_to_wait(_: Batch) -> None:
    raise RetryAfter(30)


def claim(key: RunKey, begun: Begun) -> Claim:
    return Claim(key, 500, begun.events, begun.runs, begun.burst)


def gives_back(drill: Drill) -> None:
    """Let the next run begin and be given back before it has claimed its cursor."""
    message = drill.inline.message()
    assert message is not None
    key = RunKey(*message)
    begin(drill.gate, key)
    spacing = drill.runtime.pipelines["invoices"].policy.spacing
    assert settle(drill.gate, key, Settlement(Outcome.STOPPED), spacing) is Answer.CONTINUED


def dies(drill: Drill) -> None:
    """Let the next run begin and not come back before it has claimed its cursor; then let its deadline pass."""
    message = drill.inline.message()
    assert message is not None
    begin(drill.gate, RunKey(*message))
    drill.replace_run(message[1])


def test_a_run_whose_records_the_tail_was_quicker_with_has_its_events(drill: Drill) -> None:
    drill.handle(journal)
    tail_round(drill.runtime, "invoices")
    drill.deployment.save("acme", "1", notify=False)
    tail_round(drill.runtime, "invoices")
    assert drill.run_one()
    assert counted(drill) == (0, 0, 0), "nobody sent an event yet"
    drill.go_on()
    notify(drill, 3)
    drill.go_on()
    assert rows(drill) == [("record", "handled", 0, 1, 1), ("event", "handled", 3, 1, 0)]
    assert counted(drill) == (3, 3, 0)


def test_a_run_that_finds_nothing_and_had_no_event_has_no_row(drill: Drill) -> None:
    drill.handle(journal)
    tail_round(drill.runtime, "invoices")
    drill.deployment.save("acme", "1", notify=False)
    tail_round(drill.runtime, "invoices")
    with drill.deployment.engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM taskbridge.records")
    assert drill.run_one()
    assert rows(drill) == []
    assert drill.deployment.rows("SELECT runs, bursts, found_bursts FROM taskbridge.sync_cursors") == [(1, 0, 1)], (
        "absorbed is events less bursts"
    )


def test_a_claim_that_never_reaches_postgres_costs_no_event(drill: Drill) -> None:
    drill.handle(journal)
    drill.save("acme", "1")
    notify(drill, 4)
    gives_back(drill)
    gives_back(drill)
    assert counted(drill) == (0, 0, 0)
    notify(drill)
    drill.go_on()
    assert counted(drill) == (6, 6, 0)
    assert rows(drill) == [("burst", "handled", 6, 1, 1)], "its burst's first row"
    assert drill.deployment.rows("SELECT bursts FROM taskbridge.sync_cursors") == [(1,)]


def test_a_run_that_claims_twice_counts_its_events_once(drill: Drill) -> None:
    drill.handle(journal)
    drill.save("acme", "1")
    notify(drill, 2)
    message = drill.inline.message()
    assert message is not None
    key = RunKey(*message)
    begun = begin(drill.gate, key)
    assert not isinstance(begun, Answer)
    for _ in range(2):
        drill.runtime.cursors_of("invoices").claim(claim(key, begun))
    assert counted(drill) == (3, 0, 3)
    drill.replace_run("acme")
    drill.go_on()
    assert counted(drill) == (3, 3, 0)


def test_a_burst_that_redis_has_older_counts_of_counts_no_event_back(drill: Drill) -> None:
    """After a failover its hash may be older than the cursor."""
    drill.handle(ask_to_wait)
    drill.save("acme", "1")
    notify(drill, 4)
    drill.run_one()
    assert counted(drill) == (5, 0, 5)
    drill.deployment.redis.hset(drill.runtime.keys.runner("invoices", "acme"), mapping={"events": 2, "swept": 1})
    drill.handle(journal)
    drill.go_on()
    assert counted(drill) == (5, 5, 0)


def test_a_run_that_is_told_to_wait_leaves_its_events_to_the_next_row(drill: Drill) -> None:
    drill.handle(ask_to_wait)
    drill.save("acme", "1")
    notify(drill, 2)
    drill.run_one()
    assert counted(drill) == (3, 0, 3)
    drill.handle(journal)
    drill.go_on()
    assert rows(drill) == [("more", "handled", 3, 1, 1)]


def test_a_pause_keeps_events_for_the_row_after_it(drill: Drill) -> None:
    drill.handle(journal)
    pauses = Pauses(drill.deployment.engine)
    pauses.pause("invoices", "acme", "looking at it", "ops")
    drill.save("acme", "1")
    notify(drill, 2)
    drill.run_one()
    assert counted(drill) == (3, 0, 3)
    pauses.release("invoices", "acme")
    drill.gate.expire("invoices", ["acme"], early=True)
    drill.go_on()
    assert counted(drill) == (3, 3, 0)


def test_of_a_death_the_row_has_the_events_that_came_before_it(drill: Drill) -> None:
    drill.handle(journal)
    drill.save("acme", *NUMBERS)
    notify(drill, 2)
    dies(drill)
    notify(drill, 4)
    drill.go_on()
    assert rows(drill) == [("unknown", "failed", 3, 1, 0), ("died", "handled", 4, 2, 20)]
    assert counted(drill) == (7, 7, 0)


def test_a_death_that_ends_in_quarantine_has_no_event_twice(drill: Drill, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its row is written before another record is tried, and quarantine moves the cursor after that."""
    killer, sent = Killer(drill, monkeypatch), 1
    drill.handle(killer.dies_over_bad)
    drill.save("acme", BAD, "08")
    while drill.states() != {"handled": 1, "quarantined": 1}:
        notify(drill, 3)
        sent += 3
        killer.run_one()
        assert sent < 150
    drill.go_on()
    assert counted(drill) == (sent, sent, 0)


@pytest.mark.parametrize("reason", ["handler", "probe"])
def test_a_failure_and_a_probe_have_their_events(drill: Drill, reason: str) -> None:
    def fails(_: Batch) -> None:
        raise ConnectionError("refused")

    drill.handle(fails)
    tenants = ["acme", "bolt", "core"] if reason == "probe" else ["acme"]
    for tenant in tenants:
        drill.save(tenant, "1")
        notify(drill, 2, tenant)
    drill.go_on(within_ms=60_000)
    assert drill.circuit().open is (reason == "probe")
    on_cursors, in_rows, unnoted = counted(drill)
    assert (on_cursors, in_rows + unnoted) == (3 * len(tenants), 3 * len(tenants))
    drill.handle(journal)
    drill.go_on()
    assert counted(drill) == (3 * len(tenants), 3 * len(tenants), 0)


def test_without_a_history_no_event_waits_for_a_row(drill: Drill) -> None:
    drill.handle(journal)
    settings = drill.runtime.settings
    drill.runtime.settings = replace(settings, history_days=0)
    drill.save("acme", "1")
    notify(drill, 3)
    drill.go_on()
    assert counted(drill) == (4, 0, 0)
    drill.runtime.settings = settings
    drill.save("acme", "2")
    drill.go_on()
    assert counted(drill) == (5, 1, 0)


def test_a_worker_without_a_history_leaves_the_events_of_one_that_has_it(drill: Drill) -> None:
    drill.handle(ask_to_wait)
    drill.save("acme", "1")
    notify(drill, 4)
    drill.run_one()
    settings = drill.runtime.settings
    drill.runtime.settings = replace(settings, history_days=0)
    notify(drill, 2)
    drill.go_on(until=lambda: len(drill.times) == 2)
    drill.runtime.settings = settings
    drill.handle(journal)
    drill.go_on()
    assert counted(drill) == (7, 5, 0)


def test_a_burst_that_an_older_worker_began_is_counted_once(drill: Drill) -> None:
    """Workers of before know no name of a burst, and leave the cursor's columns for it alone."""
    drill.handle(journal)
    drill.save("acme", "1")
    notify(drill, 9)
    message = drill.inline.message()
    assert message is not None
    key = RunKey(*message)
    begin(drill.gate, key)
    drill.deployment.redis.hdel(drill.runtime.keys.runner("invoices", "acme"), "burst")
    with drill.deployment.engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO taskbridge.sync_cursors (pipeline, tenant, snapshot, owner, runs, events, bursts, burst_runs, "
            "burst_events, last_run_at) VALUES ('invoices', 'acme', '1:1:', %s, 1, 10, 1, 1, 10, now())",
            (key.token,),
        )
    settle(drill.gate, key, Settlement(Outcome.STOPPED), drill.runtime.pipelines["invoices"].policy.spacing)
    notify(drill, 2)
    drill.go_on()
    drill.save("acme", "2")
    drill.go_on()
    assert counted(drill) == (13, 3, 0)
    assert drill.deployment.rows("SELECT bursts FROM taskbridge.sync_cursors") == [(2,)]


def test_a_history_that_cannot_be_written_loses_no_event(drill: Drill) -> None:
    drill.handle(journal)
    engine = drill.runtime.database
    with _renamed(drill, "runs"):
        drill.save("acme", "1")
        notify(drill, 3)
        drill.go_on()
        assert drill.states() == {"handled": 1}
    ((unnoted,),) = drill.deployment.rows("SELECT unnoted_events FROM taskbridge.sync_cursors")
    assert unnoted == 4
    from taskbridge.store import history  # noqa: PLC0415 - of this test alone

    history._rests_until.pop(engine)
    drill.save("acme", "2")
    drill.go_on()
    assert counted(drill) == (5, 5, 0)
    assert rows(drill) == [("event", "handled", 5, 1, 1)]


@contextmanager
def _renamed(drill: Drill, table: str) -> Iterator[None]:
    def rename(before: str, after: str) -> None:
        with drill.deployment.engine.begin() as connection:
            connection.exec_driver_sql(f"ALTER TABLE taskbridge.{before} RENAME TO {after}")

    rename(table, f"{table}_away")
    try:
        yield
    finally:
        rename(f"{table}_away", table)


def test_a_burst_that_the_tail_began_absorbs_each_event(drill: Drill) -> None:
    """Else the counter of absorbed events would fall, which no counter may."""
    drill.handle(ask_to_wait)
    tail_round(drill.runtime, "invoices")
    drill.deployment.save("acme", "1", notify=False)
    tail_round(drill.runtime, "invoices")
    drill.run_one()
    figures = read_counters(drill.deployment.engine, ["invoices"])["invoices"]
    assert (figures.events, figures.bursts, figures.absorbed) == (0, 1, 0)
    notify(drill, 2)
    drill.handle(journal)
    drill.go_on()
    figures = read_counters(drill.deployment.engine, ["invoices"])["invoices"]
    assert (figures.events, figures.bursts, figures.absorbed) == (2, 1, 2)
    assert counted(drill) == (2, 2, 0)
