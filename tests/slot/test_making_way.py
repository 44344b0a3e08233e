"""A run of a tenant with a backlog makes way for first events between two calls of its handler."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from taskbridge.declaring.batch import Batch
from taskbridge.store import record_invoice
from taskbridge.worker import slot
from tests.inline import Inline
from tests.slot.doing import queued, run_together, save, work


def handled_before_the_next(
    inline: Inline, newcomer: str | None, do: Callable[[Inline], object] = run_together
) -> list[str]:
    """Do one run of `large`, which has three batches, while `newcomer` saves its first record; return the calls."""
    calls: list[str] = []

    def handle(batch: Batch) -> None:
        calls.append(batch.tenant)
        if newcomer and len(calls) == 1:
            save(inline, [newcomer])

    inline.handle(handle, batch_size=2)
    for number in range(6):
        record_invoice(inline.deployment.engine, "large", str(number), {})
    inline.deployment.notify_event.delay("large")
    do(inline)
    return calls


def test_a_run_ends_after_the_call_in_which_a_first_event_came(inline: Inline) -> None:
    assert handled_before_the_next(inline, "lone") == ["large"]
    assert queued(inline) == ["lone", "large"]


def test_the_slot_itself_takes_that_first_event_also_after_its_slice(
    inline: Inline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot, "SLICE", 0.0)
    assert handled_before_the_next(inline, "lone", work) == ["large", "lone"]
    assert queued(inline) == ["large"]


def test_a_run_goes_on_while_nobody_waits(inline: Inline) -> None:
    assert handled_before_the_next(inline, None) == ["large"] * 3
    assert queued(inline) == []


def test_an_event_of_the_tenant_itself_does_not_end_its_run(inline: Inline) -> None:
    assert handled_before_the_next(inline, "large") == ["large"] * 3


def test_a_worker_that_takes_only_first_events_leaves_a_backlog_to_others(
    inline: Inline, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = inline.runtime.keys.queues
    monkeypatch.setattr(inline.runtime, "taken_from", frozenset({first}))
    assert handled_before_the_next(inline, None) == ["large"]
    assert queued(inline) == ["large"]
