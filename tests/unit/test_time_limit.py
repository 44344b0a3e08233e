"""The soft time limit of a call, where no server is needed to show it."""

from __future__ import annotations

import signal

from celery.exceptions import SoftTimeLimitExceeded

from taskbridge.process.time_limit import soft_time_limit


def test_a_limit_that_is_reached_at_the_very_end_of_a_call_interrupts_nothing_after_it() -> None:
    before = signal.getsignal(signal.SIGALRM)
    reached = 0

    for tenth in range(1, 3_000):
        try:
            with soft_time_limit(tenth * 1e-8):
                pass
        except SoftTimeLimitExceeded:
            reached += 1
        left, handles = signal.getitimer(signal.ITIMER_REAL), signal.getsignal(signal.SIGALRM)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        assert left == (0.0, 0.0)
        assert handles is before

    assert reached > 0
