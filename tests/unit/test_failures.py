"""What a failure means, without a server: the search for a bad record, the back-off, and whose fault it looks like."""

from __future__ import annotations

import psycopg
import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st
from kombu.exceptions import OperationalError as BrokerError
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError

from taskbridge.declaring.failures import Narrowing, backoff, is_downstream


def test_a_search_step_by_step() -> None:
    # The third of five records is bad.
    narrowing = Narrowing()
    steps = []
    for size, outcome in ((5, "failed"), (5, "failed"), (3, "failed"), (2, "handled"), (1, "failed"), (1, "failed")):
        narrowing = narrowing.failed(size) if outcome == "failed" else narrowing.handled(size, 500)
        steps.append((narrowing.limit, narrowing.suspects, narrowing.attempts, narrowing.is_alone))
    assert steps == [
        (5, 5, 1, False),
        (3, 5, 0, False),
        (2, 3, 0, False),
        (1, 1, 0, True),
        (1, 1, 1, True),
        (1, 1, 2, True),
    ]
    grown = []
    for size in (1, 2, 4, 8, 16):
        narrowing = narrowing.handled(size, 20)
        grown.append(narrowing.limit)
    assert grown == [2, 4, 8, 16, None]


def test_a_record_has_its_own_failures_and_deaths_alone() -> None:
    narrowing = Narrowing(5, 5, 1).failed(1, 7)
    assert narrowing == Narrowing(1, 1, 1, 0, 7), "nothing of the batch's"
    narrowing = narrowing.failed(1, 7, died=True).failed(1, 7)
    assert (narrowing, narrowing.tries) == (Narrowing(1, 1, 2, 1, 7), 3)
    assert narrowing.failed(1, 8, died=True) == Narrowing(1, 1, 0, 1, 8), "nothing of another record's"
    assert narrowing.failed(1, 7, downstream=True) == Narrowing(1, 1, 3, 1, 7, 1)
    assert narrowing.unread(1, 8) == Narrowing(1, 1, 1, 0, 8)
    assert narrowing.handled(1, 500) == Narrowing(2)


@given(
    size=st.integers(1, 300),
    batch_size=st.integers(1, 128),
    bad=st.sets(st.integers(0, 299), max_size=4),
)
@settings(max_examples=300, deadline=None)
def test_the_search_finds_every_bad_record_and_no_other(size: int, batch_size: int, bad: set[int]) -> None:
    at, narrowing, aside, calls = 0, Narrowing(), set(), 0
    while at < size:
        count = min(batch_size, size - at, narrowing.limit or batch_size)
        calls += 1
        if bad.isdisjoint(range(at, at + count)):
            at, narrowing = at + count, narrowing.handled(count, batch_size)
            continue
        narrowing = narrowing.failed(count)
        if narrowing.is_alone and narrowing.attempts >= 5:
            assert count == 1
            aside.add(at)
            at, narrowing = at + 1, narrowing.handled(1, batch_size)
    assert aside == {one for one in bad if one < size}
    # Each costs at most one more try, a halving for each doubling of the batch, five tries alone, and the way back up.
    steps = batch_size.bit_length()
    assert calls <= size / batch_size + 1 + len(aside) * (2 * steps + 7)


def test_the_back_off_doubles_up_to_five_minutes_and_has_jitter() -> None:
    for failures, longest in ((0, 0.5), (1, 1), (5, 16), (9, 256), (10, 300), (5_000, 300)):
        waits = [backoff(failures) for _ in range(200)]
        assert longest * 0.75 <= min(waits) < max(waits) <= longest


def caused_by(cause: BaseException) -> Exception:
    error = ValueError("no answer")
    error.__cause__ = cause
    return error


def while_handling(context: BaseException) -> Exception:
    error = ValueError("no answer")
    error.__context__ = context
    return error


def from_none(context: BaseException) -> Exception:
    error = while_handling(context)
    error.__suppress_context__ = True
    return error


class ServerEndedIt(psycopg.OperationalError):
    sqlstate = "57P01"


class Busy(Exception):
    pass


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ConnectionError("refused"), True),
        (TimeoutError("late"), True),
        (redis.ConnectionError("gone"), True),
        (redis.ResponseError("wrong type"), False),
        (BrokerError("gone"), True),
        (OperationalError("SELECT", {}, ServerEndedIt("ended")), True),
        (DBAPIError("SELECT", {}, psycopg.OperationalError("gone"), connection_invalidated=True), True),
        (IntegrityError("INSERT", {}, psycopg.errors.UniqueViolation("twice")), False),
        (ValueError("bad"), False),
        (caused_by(ConnectionResetError("by peer")), True),
        (caused_by(caused_by(TimeoutError("late"))), True),
        (while_handling(ConnectionError("refused")), True),
        (from_none(ConnectionError("refused")), False),
        (Busy("429"), False),
    ],
)
def test_whose_fault_an_error_looks_like(error: Exception, *, expected: bool) -> None:
    assert is_downstream(error) is expected


def test_a_pipeline_names_errors_of_its_own() -> None:
    assert is_downstream(caused_by(Busy("429")), (Busy,))


def test_causes_that_go_in_a_circle() -> None:
    error = caused_by(ValueError("inner"))
    assert error.__cause__ is not None
    error.__cause__.__context__ = error
    assert not is_downstream(error)
