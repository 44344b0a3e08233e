"""A record whose run does not end, as its process dies or hangs, is in quarantine after a bounded number of tries."""

from __future__ import annotations

from contextlib import suppress

import pytest

from taskbridge.common.run_key import RunKey
from taskbridge.declaring.batch import Batch
from taskbridge.gate import Keys
from taskbridge.handlers.journal import journal
from taskbridge.worker import slot
from tests.failures.drill import BAD, NUMBERS, SOON, Drill
from tests.runs import begin


def dies(drill: Drill) -> None:
    """Let the next run begin and not come back, as if its process were killed; then let its deadline pass."""
    message = drill.inline.message()
    assert message is not None
    begin(drill.gate, RunKey(*message))
    _, tenant, _ = message
    drill.replace_run(tenant)


def test_one_death_costs_one_attempt_and_no_wait(drill: Drill) -> None:
    drill.handle(journal)
    drill.save("acme", *NUMBERS)
    dies(drill)
    assert drill.run_one()
    assert drill.states() == {"handled": 20}
    ((failed, error),) = drill.deployment.rows("SELECT failed_runs, last_error FROM taskbridge.sync_cursors")
    assert failed == 1
    assert error.startswith("the previous run did not end: its process died")
    assert error.endswith("; it ran on worker worker-1")
    assert drill.errors == []
    history = drill.deployment.rows(
        "SELECT reason, worker, outcome, events, burst_run, records, began_at <= ended_at FROM taskbridge.runs"
        " ORDER BY token"
    )
    assert history == [
        ("unknown", "worker-1", "failed", 1, 1, 0, True),
        ("died", "", "handled", 0, 2, 20, True),
    ], "the events of the run that died are not lost"


class Killer:
    """Lets a drill's process be killed by its handler again and again: nobody hears of such a run."""

    def __init__(self, drill: Drill, monkeypatch: pytest.MonkeyPatch) -> None:
        self._drill = drill
        self._killed = False
        settle_many = drill.gate.settle_many
        monkeypatch.setattr(
            drill.gate, "settle_many", lambda *runs, **how: [] if self._killed else settle_many(*runs, **how)
        )

    def kill(self) -> None:
        """Call this in the handler."""
        self._killed = True
        raise KeyboardInterrupt

    def dies_over_bad(self, batch: Batch) -> None:
        """A handler that is killed over the bad record, and delivers all others."""
        if any(record.external_id == BAD for record in batch):
            self.kill()
        journal(batch)

    def run_one(self) -> bool:
        """Do the next run, when its time has come; return whether its process was killed."""
        drill = self._drill
        while (message := drill.inline.message()) is None:
            drill.gate.pass_to(min(status.deadline_ms or 0 for status in drill.standing()))
            drill.gate.expire("invoices", drill.gate.active("invoices"))
        self._killed = False
        try:
            slot.run_tenant(drill.runtime, *message)
        except KeyboardInterrupt:
            if self._killed:
                drill.replace_run(message[1])
        except Exception as error:
            drill.errors.append(error)
        return self._killed


def test_a_record_that_takes_its_process_and_the_sessions_of_postgres_with_it_ends_in_quarantine(
    drill: Drill, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where memory runs out, or a backend crashes: the run that counts the death finds broken connections."""
    killer = Killer(drill, monkeypatch)
    drill.handle(killer.dies_over_bad)
    drill.save("acme", BAD, "08")
    for _ in range(40):
        if killer.run_one():
            with drill.deployment.engine.connect() as connection:
                connection.exec_driver_sql(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
        if drill.states() == {"handled": 1, "quarantined": 1}:
            break
    assert drill.states() == {"handled": 1, "quarantined": 1}
    ((_, number, _, reason, attempts),) = drill.quarantine()
    assert (number, attempts) == (BAD, 5)
    assert reason.startswith("the previous run did not end")


@pytest.mark.parametrize("first_kills", [True, False])
def test_records_side_by_side_that_kill_their_process_end_in_quarantine(
    drill: Drill, monkeypatch: pytest.MonkeyPatch, first_kills: bool
) -> None:
    killer = Killer(drill, monkeypatch)

    def handler(batch: Batch) -> None:
        bad = {record.external_id for record in batch} & {"05", "06"}
        if "06" in bad or (bad and first_kills):
            killer.kill()
        if bad:
            raise ValueError("05 cannot be handled")
        journal(batch)

    drill.handle(handler)
    drill.save("acme", *NUMBERS)
    for _ in range(300):
        killer.run_one()
        if drill.states() == {"handled": 18, "quarantined": 2}:
            return
    pytest.fail(f"{drill.states()}")


def test_a_death_counts_once_where_the_run_that_counted_it_is_stopped_while_it_tries_another_record(
    drill: Drill, monkeypatch: pytest.MonkeyPatch
) -> None:
    killer, deaths = Killer(drill, monkeypatch), 0

    def handle(batch: Batch) -> None:
        if any(record.external_id == BAD for record in batch):
            killer.kill()
        if deaths == 7:
            raise KeyboardInterrupt

    drill.handle(handle)
    drill.save("acme", BAD, "08")
    while deaths < 7:
        deaths += killer.run_one()
    with suppress(KeyboardInterrupt):
        killer.run_one()
    assert drill.deployment.rows("SELECT failed_runs, deaths FROM taskbridge.sync_cursors") == [(7, 5)]
    assert "died" not in drill.deployment.redis.hgetall(Keys().runner("invoices", "acme"))


@SOON
def test_a_death_is_not_forgotten_where_the_next_run_cannot_read_its_batch(drill: Drill) -> None:
    drill.handle(journal, batch_size=1)
    drill.save("acme", "1")
    dies(drill)
    with drill.deployment.engine.begin() as connection:
        connection.exec_driver_sql("LOCK TABLE taskbridge.records IN ACCESS EXCLUSIVE MODE")
        assert drill.run_one()
    counts = "SELECT failed_runs, deaths FROM taskbridge.sync_cursors"
    assert drill.deployment.rows(counts) == [(1, 0)], "the batch was not read, which is no death"
    # when it can be read again
    drill.go_on(until=lambda: drill.deployment.rows(counts) != [(1, 0)])
    assert drill.deployment.rows(counts) == [(2, 1)], "then the death is counted"
    drill.go_on()
    assert drill.states() == {"handled": 1}


def test_from_the_second_death_in_a_row_on_the_tenant_waits(drill: Drill, monkeypatch: pytest.MonkeyPatch) -> None:
    killer = Killer(drill, monkeypatch)

    def handler(batch: Batch) -> None:
        if len(drill.calls) <= 2:
            killer.kill()
        journal(batch)

    drill.handle(handler)
    drill.save("acme", *NUMBERS)
    assert [killer.run_one() for _ in range(3)] == [True, True, False]
    assert len(drill.calls) == 2
    (status,) = drill.standing()
    assert status.held
    drill.go_on()
    assert drill.states() == {"handled": 20}


@pytest.mark.parametrize("fails", [False, True])
def test_a_replaced_run_that_does_not_notice_cannot_advance_and_says_nothing_against_a_record(
    drill: Drill, fails: bool
) -> None:
    def overslept(batch: Batch) -> None:
        if len(drill.calls) == 1:
            # The deadline passes unnoticed, and another worker takes the tenant over and does all of it.
            drill.gate.us += 6_000_000
            drill.gate.expire("invoices", [batch.tenant])
            assert drill.run_one()
            assert drill.states() == {"handled": 2}
            if fails:
                batch.handled(batch[0])
                raise ValueError("too late to matter")
        journal(batch)

    drill.deliver(overslept, "a", "b", max_attempts=1)
    assert drill.calls == [("acme", ["a", "b"]), ("acme", ["a", "b"])]
    assert drill.deployment.deliveries() == [("acme", "a"), ("acme", "b")]
    assert drill.quarantine() == []
    assert drill.standing() == []
    assert drill.deployment.rows("SELECT failures, suspects FROM taskbridge.sync_cursors") == [(0, 0)]
