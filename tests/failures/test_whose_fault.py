"""Whose fault a failure is: what rejections, other records, deaths and failures of long ago say about a record."""

from __future__ import annotations

import pytest

from taskbridge.declaring.batch import Batch
from taskbridge.handlers.journal import journal
from taskbridge.store import record_invoice
from tests.failures.drill import SOON, Drill

MALFORMED = "b"


class Away:
    """A handler that rejects malformed records before it calls anything, and whose downstream is away until healed."""

    def __init__(self, error: Exception) -> None:
        self.error: Exception | None = error

    def __call__(self, batch: Batch) -> None:
        for record in batch:
            if record.external_id == MALFORMED:
                batch.reject(record, "malformed")
        if self.error is not None and len(batch.rejected) < len(batch):
            raise self.error
        journal(batch)


def failed_alone(drill: Drill) -> int:
    """How often the suspect of acme failed."""
    return sum(
        row.attempts for row in drill.deployment.rows("SELECT attempts FROM taskbridge.sync_cursors WHERE suspects = 1")
    )


@pytest.mark.parametrize(
    ("error", "tenants"), [(ConnectionError("refused"), ["acme"]), (ValueError("503"), ["acme", "other"])], ids=str
)
def test_a_record_that_the_handler_rejects_is_no_evidence_against_another(
    drill: Drill, error: Exception, tenants: list[str]
) -> None:
    away = Away(error)
    drill.handle(away, max_attempts=2)
    for tenant in tenants:
        drill.save(tenant, "a", MALFORMED, "c", "d")
    drill.go_on(within_ms=600_000)
    assert {number for _, number, *_ in drill.quarantine()} <= {MALFORMED}
    assert drill.circuit().open is (len(tenants) > 1), "no rejection closes it"
    assert drill.circuit().opened == len(tenants) - 1
    assert drill.deployment.rows("SELECT FROM taskbridge.pipelines WHERE succeeded_at IS NOT NULL") == []
    assert len(drill.calls) < 200
    away.error = None
    drill.go_on()
    assert drill.states() == {"handled": 3 * len(tenants), "quarantined": len(tenants)}


def test_the_error_of_a_handler_is_reported_also_where_redis_refuses_the_end_of_its_run(
    drill: Drill, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(batch: Batch) -> None:
        runner = drill.runtime.keys.runner("invoices", batch.tenant)
        drill.runtime.redis.delete(runner)
        drill.runtime.redis.set(runner, "not a hash")
        raise ValueError("bad")

    drill.handle(fail)
    drill.save("acme", "1")
    drill.run_one()
    assert [str(error) for error in drill.errors] == ["bad"]
    assert "run of invoices for tenant 'acme' could not be settled" in caplog.text
    assert "WRONGTYPE" in caplog.text


def test_beside_records_that_are_all_rejected_a_bad_one_goes_as_one_that_is_alone(drill: Drill) -> None:
    def handler(batch: Batch) -> None:
        if batch[0].external_id == "00":
            raise ValueError("bad")
        for record in batch:
            batch.reject(record, "malformed")

    drill.handle(handler, max_attempts=2)
    drill.save("acme", *(f"{number:02}" for number in range(20)))
    drill.go_on(steps=100)
    causes = {number: cause for _, number, cause, *_ in drill.quarantine()}
    assert causes.pop("00") == "failed"
    assert set(causes.values()) == {"rejected"}
    assert drill.states() == {"quarantined": 20}


def test_a_downstream_that_comes_back_during_the_trial_costs_no_record_that_is_rejected_then(drill: Drill) -> None:
    def handler(batch: Batch) -> None:
        if batch[0].external_id == "a":
            if len(drill.calls) < 5:
                raise ConnectionError("refused")
            batch.reject(batch[0], "malformed")
        journal(batch)

    drill.handle(handler, max_attempts=2)
    drill.save("acme", "a", "c")
    drill.go_on()
    assert [(number, cause, reason) for _, number, cause, reason, _ in drill.quarantine()] == [
        ("a", "rejected", "malformed")
    ]


@SOON
def test_a_look_that_is_lost_during_the_trial_leaves_the_handlers_error(drill: Drill) -> None:
    with drill.deployment.engine.connect() as elsewhere:

        def handler(batch: Batch) -> None:
            if len(drill.calls) == 1:
                elsewhere.exec_driver_sql("LOCK TABLE taskbridge.records IN ACCESS EXCLUSIVE MODE")
                raise ValueError("bad")
            journal(batch)

        drill.handle(handler, max_attempts=1, batch_size=1)
        drill.save("acme", "a", "b")
        drill.run_one()
    assert [str(error) for error in drill.errors] == ["bad"]
    ((error, failed),) = drill.deployment.rows("SELECT last_error, failed_runs FROM taskbridge.sync_cursors")
    assert (error, failed) == ("ValueError: bad", 1)
    drill.go_on()
    assert drill.states() == {"handled": 2}


def test_an_outage_is_no_try_of_a_record_that_fails_otherwise(drill: Drill) -> None:
    errors: list[Exception] = [ConnectionError("refused"), ConnectionError("refused"), ValueError("not now")]

    def handler(batch: Batch) -> None:
        if errors and batch[0].tenant == "acme":
            raise errors.pop(0)
        journal(batch)

    drill.handle(handler, max_attempts=2)
    drill.save("acme", "a")
    drill.save("other", "1")
    drill.go_on()
    assert (drill.quarantine(), drill.states()) == ([], {"handled": 2})


def test_a_record_that_fails_now_in_one_way_and_now_in_another_goes_to_quarantine(drill: Drill) -> None:
    tries = 0

    def handler(batch: Batch) -> None:
        nonlocal tries
        if batch[0].tenant == "acme":
            tries += 1
            if tries == 1:
                raise ValueError("bad")
            raise ConnectionError("refused") if tries % 7 else ValueError("bad")
        journal(batch)

    drill.handle(handler, max_attempts=3)
    drill.save("acme", "a")
    for number in range(40):
        before = tries
        drill.save("other", str(number))
        drill.go_on(until=lambda before=before: tries > before or bool(drill.quarantine()))  # type: ignore[misc]
    assert [number for _, number, *_ in drill.quarantine()] == ["a"]
    assert tries == 4 * 3, "errors of both kinds together, at one that says downstream"


def test_what_was_handled_before_a_records_first_failure_is_no_evidence(drill: Drill) -> None:
    away = Away(ValueError("500"))
    drill.handle(away)
    drill.save("acme", "last week")
    drill.run_one()
    away.error = None
    drill.go_on()
    drill.save("other", "since")
    drill.go_on()
    away.error = ValueError("500")
    drill.handle(away, max_attempts=1, batch_size=1)
    drill.save("acme", "a", "c")
    drill.go_on(within_ms=100_000)
    assert failed_alone(drill) > 1
    assert drill.quarantine() == []


def test_a_record_inherits_no_attempts_of_the_one_before_it(drill: Drill) -> None:
    def handler(batch: Batch) -> None:
        if batch[0].document.get("bad"):
            raise ValueError("bad")
        if batch[0].external_id == "b" and not transient:
            transient.append("once")
            raise ValueError("not now")
        journal(batch)

    transient: list[str] = []
    drill.handle(handler, max_attempts=5)
    drill.save("acme", "a", bad=True)
    drill.save("acme", "b")
    drill.go_on(until=lambda: failed_alone(drill) == 4)
    record_invoice(drill.deployment.engine, "acme", "a", {"bad": False})
    drill.save("other", "works")
    drill.go_on()
    assert drill.quarantine() == []
    assert drill.states() == {"handled": 3}


def test_a_record_out_of_quarantine_inherits_no_attempts_of_the_one_that_it_stands_before(drill: Drill) -> None:
    def handler(batch: Batch) -> None:
        if batch[0].external_id == "a" or (batch[0].external_id == "z" and not transient):
            transient.extend(["once"] * (batch[0].external_id == "z"))
            raise ValueError("bad")
        journal(batch)

    transient: list[str] = []
    drill.handle(lambda batch: batch.reject(batch[0], "first"))
    drill.save("acme", "z")
    drill.go_on()
    drill.handle(handler, max_attempts=5)
    drill.save("acme", "a")
    drill.go_on(until=lambda: failed_alone(drill) == 4)
    with drill.deployment.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE taskbridge.quarantine SET retry_at = now()")
    drill.save("other", "works")
    drill.go_on()
    assert [(number, attempts) for _, number, *_, attempts in drill.quarantine()] == [("a", 5)]
    assert drill.states("acme") == {"handled": 1, "quarantined": 1}


@pytest.mark.parametrize(
    ("story", "max_attempts"),
    [("kill, error", 2), ("kill, kill, error", 3), ("error, error, error, error, kill", 5), ("kill, error, kill", 2)],
)
def test_kills_from_outside_count_for_no_error_of_the_record(drill: Drill, story: str, max_attempts: int) -> None:
    left = story.split(", ")

    def handler(batch: Batch) -> None:
        match left.pop(0) if left else None:
            case "error":
                raise ValueError("not now")
            case "kill":
                drill.replace_run("acme")
                raise KeyboardInterrupt
        journal(batch)

    drill.handle(handler, max_attempts=max_attempts, batch_size=1)
    drill.save("acme", "1")
    for _ in range(story.count("kill")):
        with pytest.raises(KeyboardInterrupt):
            drill.go_on()
    drill.go_on()

    assert drill.quarantine() == []
    assert drill.states() == {"handled": 1}
