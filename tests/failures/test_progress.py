"""A handler that makes a request for each record and fails in the middle: what it was done with does not come again."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from sqlalchemy import text

from taskbridge.declaring.batch import Batch, Record, RetryAfter
from tests.failures.drill import Drill

NUMBERS = [f"{number:02}" for number in range(1, 13)]


class Downstream:
    """Counts the requests for each record. The first for each of `refuses` raises its error, or an error each time."""

    def __init__(self, refuses: dict[str, Exception], *, always: bool = False) -> None:
        self.refuses, self.always = refuses, always
        self.accepted: Counter[str] = Counter()

    def take(self, record: Record) -> None:
        error = self.refuses.get(record.external_id)
        if error is not None:
            if not self.always:
                del self.refuses[record.external_id]
            raise error
        self.accepted[record.external_id] += 1

    def deliver(self, batch: Batch) -> None:
        for record in batch:
            self.take(record)
            batch.handled(record)

    async def deliver_together(self, batch: Batch) -> None:
        async def one(record: Record) -> None:
            self.take(record)
            batch.handled(record)

        async with asyncio.TaskGroup() as group:
            for record in batch:
                group.create_task(one(record))


ERRORS = {"an error": ValueError("no"), "downstream": ConnectionError("gone"), "wait": RetryAfter(2)}


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("together", [False, True])
def test_requests_that_were_made_before_one_failed_are_made_again(drill: Drill, error: str, together: bool) -> None:
    downstream = Downstream(dict.fromkeys(("05", "08", "12"), ERRORS[error]))
    drill.deliver(downstream.deliver_together if together else downstream.deliver, *NUMBERS, batch_size=100)

    # Of those that began together, the ones behind the first that failed come again.
    once = NUMBERS[:4] if together else NUMBERS
    assert {number: downstream.accepted[number] for number in once} == dict.fromkeys(once, 1)
    assert drill.states() == {"handled": 12}
    assert drill.quarantine() == []


@pytest.mark.parametrize("is_coroutine", [False, True])
def test_what_was_written_before_a_handler_returned_a_wait_is_kept(drill: Drill, is_coroutine: bool) -> None:
    downstream = Downstream({"05": RetryAfter(2), "08": RetryAfter(2, scope="pipeline")})

    def write(batch: Batch) -> RetryAfter | None:
        for record in batch:
            try:
                downstream.take(record)
            except RetryAfter as told:
                return told
            batch.connection.execute(text("INSERT INTO sent VALUES (:key)"), {"key": record.external_id})
            batch.handled(record)
        return None

    async def write_in_a_coroutine(batch: Batch) -> RetryAfter | None:
        return write(batch)

    drill.deployment.execute("CREATE TABLE sent (key text PRIMARY KEY)")
    drill.deliver(write_in_a_coroutine if is_coroutine else write, *NUMBERS, batch_size=100)

    assert downstream.accepted == dict.fromkeys(NUMBERS, 1)
    assert drill.deployment.rows("SELECT key FROM sent ORDER BY key") == [(number,) for number in NUMBERS]
    assert (drill.states(), drill.errors) == ({"handled": 12}, [])


def test_what_was_written_out_of_order_before_a_wait_is_rolled_back(drill: Drill) -> None:
    waits = [RetryAfter(2)]

    def write(batch: Batch) -> RetryAfter | None:
        *others, last = batch
        batch.connection.execute(text("INSERT INTO sent VALUES (:key)"), {"key": last.external_id})
        if not waits:
            return None
        batch.handled(last)
        batch.handled(others[0])
        return waits.pop()

    drill.deployment.execute("CREATE TABLE sent (key text PRIMARY KEY)")
    drill.deliver(write, *NUMBERS, batch_size=100)

    (error,) = drill.errors
    assert "handle records in the order of the batch" in str(error)
    assert drill.states() == {"handled": 12}


def test_a_batch_shrinks_although_its_handler_says_how_far_it_came(drill: Drill) -> None:
    downstream = Downstream({"04": RetryAfter(2), "08": RetryAfter(2)})
    drill.deliver(downstream.deliver, *NUMBERS, batch_size=4)

    batches = (NUMBERS[:4], NUMBERS[3:7], NUMBERS[7:11], NUMBERS[7:11], NUMBERS[11:])
    assert drill.calls == [("acme", batch) for batch in batches]


def test_the_bad_record_of_a_batch_takes_the_others_along(drill: Drill) -> None:
    downstream = Downstream({"07": ValueError("never")}, always=True)

    def reject_one(batch: Batch) -> None:
        for record in batch:
            if record.external_id == "02":
                batch.reject(record, "not wanted")
                continue
            downstream.take(record)
            batch.handled(record)

    drill.deliver(reject_one, *NUMBERS, batch_size=100, max_attempts=2)

    assert drill.states() == {"handled": 10, "quarantined": 2}
    assert [(number, cause) for _, number, cause, _, _ in drill.quarantine()] == [("02", "rejected"), ("07", "failed")]
    assert {number: downstream.accepted[number] for number in NUMBERS[:6]} == {
        number: int(number != "02") for number in NUMBERS[:6]
    }
    assert "02" not in drill.calls[1][1], "its rejection is kept"


def test_what_was_handled_is_kept_although_the_handler_fails_after_the_last(drill: Drill) -> None:
    downstream = Downstream({})

    def fail_at_the_end(batch: Batch) -> None:
        downstream.deliver(batch)
        raise ValueError("cannot close the client")

    drill.deliver(fail_at_the_end, *NUMBERS)

    assert downstream.accepted == Counter(NUMBERS)
    assert [str(error) for error in drill.errors] == ["cannot close the client"]
    assert drill.states() == {"handled": 12}


def test_a_mark_commits_what_is_half_written(drill: Drill) -> None:
    drill.deployment.execute("CREATE TABLE effects (number text)")

    def write(batch: Batch) -> None:
        for record in batch:
            batch.connection.execute(text("INSERT INTO effects VALUES (:number)"), {"number": record.external_id})
            if record.external_id == "05" and len(drill.calls) == 1:
                raise ValueError("half of it")
            batch.handled(record)

    drill.deliver(write, *NUMBERS)

    assert drill.calls[1] == ("acme", NUMBERS)
    assert [number for (number,) in drill.deployment.rows("SELECT number FROM effects ORDER BY number")] == NUMBERS


def test_a_process_that_is_told_to_end_doubles_what_it_sent(drill: Drill) -> None:
    downstream = Downstream({})

    def told_to_end(batch: Batch) -> None:
        for record in batch:
            if record.external_id == "05" and len(drill.calls) == 1:
                raise KeyboardInterrupt
            downstream.take(record)
            batch.handled(record)

    drill.handle(told_to_end)
    drill.save("acme", *NUMBERS)
    with pytest.raises(KeyboardInterrupt):
        drill.run_one()
    assert drill.run_one(), "its batch is handed over, at once and as no failure"
    drill.go_on()

    assert downstream.accepted == Counter(NUMBERS)
    assert drill.deployment.rows("SELECT failed_runs FROM taskbridge.sync_cursors") == [(0,)]
