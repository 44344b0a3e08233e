"""One bad record: found by halving, put into quarantine with its error, and the rest of its tenant go on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from taskbridge.declaring.batch import Batch
from taskbridge.handlers.journal import journal
from tests.failures.drill import Drill

NUMBERS = [f"{number:03}" for number in range(1, 101)]


def refuse(*numbers: str) -> Callable[[Batch], None]:
    """Return a handler that raises where it is given one of `numbers`, and writes the journal else."""

    def handler(batch: Batch) -> None:
        for record in batch:
            if record.external_id in numbers:
                raise ValueError(f"{record.external_id} is bad")
        journal(batch)

    return handler


@pytest.mark.parametrize("bad", ["001", "050", "100"])
def test_one_bad_record_among_many_is_found_and_the_rest_is_handled_once(drill: Drill, bad: str) -> None:
    drill.handle(refuse(bad), batch_size=64)
    drill.save("acme", *NUMBERS)
    drill.go_on()
    assert drill.states() == {"handled": 99, "quarantined": 1}
    assert drill.quarantine() == [("acme", bad, "failed", f"ValueError: {bad} is bad", 5)]
    assert sorted(drill.deployment.deliveries()) == [("acme", number) for number in NUMBERS if number != bad]
    assert drill.circuit().opened == 0
    # Once more as it was, six halvings, five times alone, and the batches that grow again.
    assert len(drill.calls) <= 25


def test_several_bad_records_are_found_one_after_another(drill: Drill) -> None:
    bad = ("003", "004", "040", "041", "090")
    drill.handle(refuse(*bad), batch_size=32)
    drill.save("acme", *NUMBERS)
    drill.go_on()
    assert drill.states() == {"handled": 95, "quarantined": 5}
    assert tuple(row[1] for row in drill.quarantine()) == bad


def test_a_record_that_fails_now_and_then_is_handled(drill: Drill) -> None:
    def fail_the_first_three(batch: Batch) -> None:
        if len(drill.calls) <= 3:
            raise ValueError("not now")
        journal(batch)

    drill.handle(fail_the_first_three)
    drill.save("acme", "a", "b", "c")
    drill.go_on()
    assert drill.states() == {"handled": 3}
    assert [len(numbers) for _, numbers in drill.calls[:3]] == [3, 3, 2]


def test_the_only_record_of_the_pipeline_goes_to_quarantine_after_the_limit_and_its_back_off_doubles(
    drill: Drill,
) -> None:
    drill.handle(refuse("a"), max_attempts=4)
    drill.save("acme", "a")
    drill.go_on()
    assert drill.quarantine() == [("acme", "a", "failed", "ValueError: a is bad", 4)]
    waits = [later - earlier for earlier, later in zip(drill.times, drill.times[1:], strict=False)][:3]
    for wait, longest in zip(waits, (500, 1000, 2000), strict=True):
        assert longest * 0.75 - 1 <= wait <= longest + 1, waits
    ((since, at),) = drill.deployment.rows("SELECT failing_since, quarantined_at FROM taskbridge.quarantine")
    assert since < at


def test_an_event_does_not_shorten_a_back_off(drill: Drill) -> None:
    drill.handle(refuse("a"))
    drill.save("acme", "a")
    drill.run_one()
    drill.save("acme", "b")
    assert not drill.run_one(), "the event was absorbed"
    (status,) = drill.standing()
    assert status.held
    assert status.events == 2


def test_a_failure_is_written_down_and_forgotten_after_a_success(drill: Drill) -> None:
    drill.handle(refuse("a"))
    drill.save("acme", "a", "b")
    drill.run_one()
    ((failures, error, since),) = drill.deployment.rows(
        "SELECT failures, last_error, failing_since FROM taskbridge.sync_cursors"
    )
    assert (failures, error) == (1, "ValueError: a is bad")
    assert since is not None
    drill.handle(refuse())
    drill.go_on()
    ((failures, since),) = drill.deployment.rows("SELECT failures, failing_since FROM taskbridge.sync_cursors")
    assert (failures, since) == (0, None)


def test_a_handler_puts_one_record_into_quarantine_at_once(drill: Drill) -> None:
    def reject_the_second(batch: Batch) -> None:
        if len(batch) > 1:
            batch.reject(batch[1], "no such customer")
        journal(batch)

    drill.handle(reject_the_second)
    drill.save("acme", "a", "b", "c")
    drill.go_on()
    assert len(drill.calls) == 1
    assert drill.quarantine() == [("acme", "b", "rejected", "no such customer", 1)]
    assert drill.deployment.deliveries() == [("acme", "a"), ("acme", "c")]


def test_a_rejection_takes_effect_with_the_cursor_or_not_at_all(drill: Drill) -> None:
    def reject_and_fail(batch: Batch) -> None:
        batch.reject(batch[0], "never mind")
        raise ValueError("no")

    drill.handle(reject_and_fail)
    drill.save("acme", "a", "b")
    drill.run_one()
    assert drill.quarantine() == []
    assert drill.states() == {"pending": 2}


def test_a_record_of_another_batch_cannot_be_marked(drill: Drill) -> None:
    batches: list[Batch] = []

    def mark_another(batch: Batch) -> None:
        batches.append(batch)
        if len(batches) == 2:
            for mark in (lambda one: batch.reject(one, "why"), batch.handled):
                with pytest.raises(ValueError, match=r"'a' of tenant '(acme|other)' is not in this batch"):
                    mark(batches[0][0])

    drill.handle(mark_another)
    drill.save("acme", "a")
    drill.save("other", "a")
    drill.go_on()
    assert len(batches) == 2


@pytest.mark.parametrize("reason", ["", " "])
def test_a_rejection_without_a_reason_costs_no_other_record(drill: Drill, reason: str) -> None:
    drill.handle(lambda batch: batch.reject(batch[0], reason))
    drill.save("acme", "a", "b")
    drill.go_on()
    assert drill.states() == {"quarantined": 1, "handled": 1}
    assert ["no reason given" in one for one in drill.quarantine()] == [True]


def ask_for_another_try(drill: Drill, number: str) -> None:
    with drill.deployment.engine.begin() as connection:
        connection.exec_driver_sql(
            "UPDATE taskbridge.quarantine SET retry_at = now() WHERE external_id = %s", (number,)
        )
    drill.deployment.notify_event.delay("acme")


def test_a_record_that_is_tried_again_is_handled_once_and_leaves_quarantine(drill: Drill) -> None:
    drill.handle(refuse("b"), max_attempts=1)
    drill.save("acme", "a", "b", "c")
    drill.go_on()
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


def test_a_record_that_fails_again_returns_to_quarantine_with_all_its_attempts(drill: Drill) -> None:
    drill.handle(refuse("b"), max_attempts=2)
    drill.save("acme", "a", "b")
    drill.go_on()
    ask_for_another_try(drill, "b")
    drill.save("acme", "c")
    drill.go_on()
    assert drill.quarantine() == [("acme", "b", "failed", "ValueError: b is bad", 4)]
    assert drill.states() == {"handled": 2, "quarantined": 1}


@pytest.mark.parametrize("batch_size", [1, 3])
def test_records_out_of_quarantine_in_the_middle_of_a_sweep_lose_nothing(drill: Drill, batch_size: int) -> None:
    drill.handle(refuse("002", "004", "005"), max_attempts=1, batch_size=batch_size)
    drill.save("acme", *NUMBERS[:9])
    drill.go_on()
    drill.handle(refuse(), batch_size=batch_size)
    drill.runtime.settings = replace(drill.runtime.settings, run_budget=0.01)
    drill.save("acme", *NUMBERS[9:30])
    drill.run_one()
    with drill.deployment.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE taskbridge.quarantine SET retry_at = now()")
    drill.deployment.notify_event.delay("acme")
    drill.go_on()
    assert drill.states() == {"handled": 30}
    assert sorted(drill.deployment.deliveries()) == [("acme", number) for number in NUMBERS[:30]]


def test_a_record_that_changes_in_the_source_leaves_quarantine_by_itself(drill: Drill) -> None:
    drill.handle(refuse("b"), max_attempts=1)
    drill.save("acme", "a", "b")
    drill.go_on()
    drill.handle(refuse())
    drill.save("acme", "b", corrected=True)
    assert drill.states() == {"handled": 1, "pending": 1}
    drill.go_on()
    assert drill.states() == {"handled": 2}
    assert drill.quarantine() == []


def test_a_record_that_changes_before_it_is_tried_again_comes_once_as_it_is_now(drill: Drill) -> None:
    drill.handle(refuse("b"), max_attempts=1)
    drill.save("acme", "a", "b")
    drill.go_on()
    drill.handle(refuse())
    drill.calls.clear()
    ask_for_another_try(drill, "b")
    drill.save("acme", "b", corrected=True)
    drill.go_on()
    assert drill.calls == [("acme", ["b"])]
    assert drill.states() == {"handled": 2}
    assert drill.quarantine() == []
