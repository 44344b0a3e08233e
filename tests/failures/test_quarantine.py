"""One bad record: found by halving, put into quarantine on evidence, and the rest of its tenant continue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from taskbridge.declaring.batch import Batch, Record
from taskbridge.errors import HandlerMistake
from taskbridge.handlers.journal import journal
from taskbridge.store import record_invoice
from tests.failures.drill import Downstream, Drill, refuse

NUMBERS = [f"{number:03}" for number in range(1, 101)]


def test_the_only_record_of_the_pipeline_goes_to_quarantine_after_the_limit_and_its_back_off_doubles(
    drill: Drill,
) -> None:
    drill.deliver(refuse("a"), "a", max_attempts=4)
    assert drill.quarantine() == [("acme", "a", "failed", "ValueError: a is bad", 4)]
    waits = [later - earlier for earlier, later in zip(drill.times, drill.times[1:], strict=False)][:3]
    for wait, longest in zip(waits, (500, 1000, 2000), strict=True):
        assert longest * 0.75 - 1 <= wait <= longest + 1, waits
    ((since, at),) = drill.deployment.rows("SELECT failing_since, quarantined_at FROM taskbridge.quarantine")
    assert since < at


def test_a_failure_is_written_down_and_forgotten_after_a_success(drill: Drill) -> None:
    drill.handle(refuse("a"))
    drill.save("acme", "a", "b")
    drill.run_one()
    drill.save("acme", "c")
    assert not drill.run_one(), "an event does not shorten the back-off"
    ((failures, error, since),) = drill.deployment.rows(
        "SELECT failures, last_error, failing_since FROM taskbridge.sync_cursors"
    )
    assert (failures, error) == (1, "ValueError: a is bad")
    assert since is not None
    drill.handle(refuse())
    drill.go_on()
    ((failures, since),) = drill.deployment.rows("SELECT failures, failing_since FROM taskbridge.sync_cursors")
    assert (failures, since) == (0, None)


def test_a_handler_puts_records_into_quarantine_at_once(drill: Drill) -> None:
    def reject_two(batch: Batch) -> None:
        batch.reject(batch[1], "no such customer")
        batch.reject(batch[2], " ")
        if len(drill.calls) == 1:
            assert drill.quarantine() == []
            raise ValueError("a rejection takes effect with the cursor or not at all")
        journal(batch)

    drill.deliver(reject_two, "a", "b", "c", "d")
    assert len(drill.calls) == 2
    assert drill.quarantine() == [
        ("acme", "b", "rejected", "no such customer", 1),
        ("acme", "c", "rejected", "no reason given", 1),
    ]
    assert drill.deployment.deliveries() == [("acme", "a"), ("acme", "d")]


def test_a_record_of_another_batch_or_of_one_that_is_over_cannot_be_marked(drill: Drill) -> None:
    batches: list[Batch] = []

    def marks(batch: Batch) -> list[Callable[[Record], None]]:
        return [lambda record: batch.reject(record, "why"), batch.handled]

    def mark_another(batch: Batch) -> None:
        batches.append(batch)
        if len(batches) == 2:
            for mark in marks(batch):
                with pytest.raises(ValueError, match=r"'a' of tenant '(acme|other)' is not in this batch"):
                    mark(batches[0][0])

    drill.handle(mark_another)
    drill.save("acme", "a")
    drill.save("other", "a")
    drill.go_on()
    assert len(batches) == 2
    for mark in marks(batches[0]):
        with pytest.raises(HandlerMistake, match="the batch is over"):
            mark(batches[0][0])


def ask_for_another_try(drill: Drill, number: str) -> None:
    drill.deployment.execute("UPDATE taskbridge.quarantine SET retry_at = now() WHERE external_id = %s", (number,))
    drill.deployment.notify_event.delay("acme")


def test_a_record_that_is_tried_again_is_handled_once_and_leaves_quarantine(drill: Drill) -> None:
    drill.deliver(refuse("b"), "a", "b", max_attempts=2)
    ask_for_another_try(drill, "b")
    drill.save("acme", "c")
    drill.go_on()
    assert drill.quarantine() == [("acme", "b", "failed", "ValueError: b is bad", 4)], "it failed again"
    assert drill.states() == {"handled": 2, "quarantined": 1}
    drill.handle(refuse())
    drill.save("acme", "d")
    ask_for_another_try(drill, "b")
    assert drill.states() == {"handled": 2, "pending": 2}
    drill.calls.clear()
    drill.go_on()
    assert drill.calls == [("acme", ["b", "d"])], "what was asked for comes first"
    assert drill.states() == {"handled": 4}
    assert drill.quarantine() == []
    assert sorted(drill.deployment.deliveries()) == [("acme", number) for number in "abcd"]


def test_records_out_of_quarantine_in_the_middle_of_a_sweep_lose_nothing(drill: Drill) -> None:
    drill.handle(refuse("002", "004", "005"), max_attempts=1, batch_size=3)
    drill.save("acme", *NUMBERS[:9])
    drill.go_on()
    drill.handle(refuse(), batch_size=3)
    drill.runtime.settings = replace(drill.runtime.settings, run_budget=0.01)
    drill.save("acme", *NUMBERS[9:30])
    drill.run_one()
    drill.deployment.execute("UPDATE taskbridge.quarantine SET retry_at = now()")
    drill.deployment.notify_event.delay("acme")
    drill.go_on()
    assert drill.states() == {"handled": 30}
    assert sorted(drill.deployment.deliveries()) == [("acme", number) for number in NUMBERS[:30]]


def test_a_record_that_changes_in_the_source_leaves_quarantine_by_itself_and_comes_once(drill: Drill) -> None:
    drill.deliver(refuse("b", "c"), "a", "b", "c", "d", max_attempts=1)
    assert drill.states() == {"handled": 2, "quarantined": 2}
    drill.handle(refuse())
    drill.calls.clear()
    ask_for_another_try(drill, "c")
    drill.save("acme", "b", "c", corrected=True)
    assert drill.states() == {"handled": 2, "pending": 2}
    drill.go_on()
    assert [sorted(numbers) for _, numbers in drill.calls] == [["b", "c"]]
    assert drill.states() == {"handled": 4}
    assert drill.quarantine() == []


MALFORMED = "b"


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
    away = Downstream(error, MALFORMED)
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


def test_beside_records_that_are_all_rejected_a_bad_one_goes_as_one_that_is_alone(drill: Drill) -> None:
    def handler(batch: Batch) -> None:
        if batch[0].external_id == "00":
            raise ValueError("bad")
        for record in batch:
            batch.reject(record, "malformed")

    drill.deliver(handler, *(f"{number:02}" for number in range(20)), max_attempts=2)
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

    drill.deliver(handler, "a", "c", max_attempts=2)
    assert [(number, cause, reason) for _, number, cause, reason, _ in drill.quarantine()] == [
        ("a", "rejected", "malformed")
    ]


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
    away = Downstream(ValueError("500"))
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


@pytest.mark.parametrize(
    ("story", "max_attempts"),
    [("kill, kill, error", 3), ("error, error, error, error, kill", 5)],
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
