"""What a failure means, without a server: the search for a bad record, the back-off, and whose fault it looks like."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from taskbridge.declaring.failures import Bisection, backoff, is_downstream


@given(
    size=st.integers(1, 300),
    batch_size=st.integers(1, 128),
    bad=st.sets(st.integers(0, 299), max_size=4),
)
@settings(max_examples=300, deadline=None)
def test_the_search_finds_every_bad_record_and_no_other(size: int, batch_size: int, bad: set[int]) -> None:
    at, bisection, quarantined, calls = 0, Bisection(), set(), 0
    while at < size:
        count = min(batch_size, size - at, bisection.limit or batch_size)
        calls += 1
        assert (bisection.limit or 0) <= batch_size
        if bad.isdisjoint(range(at, at + count)):
            at, bisection = at + count, bisection.handled(count, batch_size)
            continue
        bisection = bisection.failed(count)
        if bisection.is_alone and bisection.attempts >= 5:
            assert count == 1
            quarantined.add(at)
            at, bisection = at + 1, bisection.handled(1, batch_size)
    assert quarantined == {one for one in bad if one < size}
    # Each costs at most one more try, a halving for each doubling of the batch, five tries alone, and the way back up.
    steps = batch_size.bit_length()
    assert calls <= size / batch_size + 1 + len(quarantined) * (2 * steps + 7)


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


def test_a_failure_is_of_the_downstream_if_one_that_it_came_from_is() -> None:
    """Which errors those are: `test_server_errors.py`."""
    refused = ConnectionError("refused")
    for error in (caused_by(refused), caused_by(caused_by(refused)), while_handling(refused)):
        assert is_downstream(error)
    for error in (ValueError("bad"), from_none(refused)):
        assert not is_downstream(error)


def test_causes_that_go_in_a_circle() -> None:
    error = caused_by(ValueError("inner"))
    assert error.__cause__ is not None
    error.__cause__.__context__ = error
    assert not is_downstream(error)
