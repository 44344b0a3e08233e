"""A round of many tenants due at once counts every call of the handler, however long it takes to look around."""

from __future__ import annotations

import time
from functools import partial

import pytest

from benchmarks import due
from benchmarks.cpu import Cpu
from benchmarks.due import drain, wait
from benchmarks.lateness import PIPELINE
from benchmarks.marks import MARKS
from benchmarks.stage import stage, wait_until, worker


class SlowCpu(Cpu):
    """A machine with so many processes that reading their CPU time takes as long as there is for it."""

    def seconds(self) -> dict[str, float]:
        time.sleep(due.LOOK_AROUND * 0.7)
        return super().seconds()


@pytest.mark.e2e
@pytest.mark.timeout(60)
def test_no_call_of_the_handler_is_missed_while_the_cpu_time_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    # A measurement is refused where the machine was too slow to set it up, so there is more time for that.
    monkeypatch.setattr(due, "LOOK_AROUND", 10 * due.LOOK_AROUND)
    monkeypatch.setattr(due, "HEAD_START_MS", 10 * due.HEAD_START_MS)
    with stage() as (runtime, directory):
        marks = directory / "marks"
        with worker(runtime, directory, "--pool", "threads", "--concurrency", "1", **{MARKS: str(marks)}):
            wait_until(lambda: runtime.redis.exists(runtime.keys.tailing(PIPELINE)), "the worker's ticker starts", 60)
            round_of_ten = drain(runtime, marks, partial(wait, runtime), SlowCpu(runtime, {}), 10)
    assert 0 < round_of_ten.seconds < 30
