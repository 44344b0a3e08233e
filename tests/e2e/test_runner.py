"""The story of one run, told in this process: real Redis, real Postgres, and messages taken from the queue by hand."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pytest

from taskbridge.common.run_key import RunKey
from taskbridge.declaring.batch import Batch, RetryAfter
from taskbridge.gate import Answer, Begun, State
from taskbridge.store import record_invoice
from taskbridge.worker import slot
from taskbridge.worker.poller import reconcile
from tests.deployment import Deployment
from tests.inline import Inline
from tests.waiting import wait_until


@pytest.fixture
def inline(deployment: Deployment) -> Inline:
    return Inline(deployment)


@pytest.mark.parametrize("deployment", [{"run_budget": 0.01}], indirect=True)
def test_an_event_during_a_sweep_that_the_next_run_resumes_is_not_forgotten(inline: Inline) -> None:
    # given a sweep of two batches, of which a run's budget allows one
    def one_comes_meanwhile(_: Batch) -> None:
        time.sleep(0.02)
        if len(inline.seen) == 1:
            inline.deployment.save("acme", "c")

    inline.handle(one_comes_meanwhile, batch_size=1)
    inline.deployment.save("acme", "a", "b", notify=False)
    inline.deployment.notify_event.delay("acme")
    # when an invoice comes after that sweep began, and its event is absorbed
    runs = inline.run_all()
    # then the runner does not end before it is handled
    assert inline.seen == ["a", "b", "c"]
    assert runs > 1
    assert inline.state() is State.IDLE


def test_a_cursor_with_a_higher_owner_costs_one_run_and_is_not_stuck(inline: Inline) -> None:
    # given a cursor whose owner's token is an hour ahead: the clock of Redis stepped back
    inline.handle(lambda _: None)
    ahead = f"{int((time.time() + 3600) * 1_000_000):016d}-ffffffffffff"
    with inline.deployment.engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO taskbridge.sync_cursors (pipeline, tenant, owner) VALUES ('invoices', 'acme', %s)", (ahead,)
        )
    inline.deployment.save("acme", "a")
    assert inline.run_all() == 2
    assert inline.seen == ["a"]
    assert inline.state() is State.IDLE
    ((owner,),) = inline.deployment.rows("SELECT owner FROM taskbridge.sync_cursors")
    assert owner > ahead


def test_a_late_message_does_nothing(inline: Inline) -> None:
    inline.handle(lambda _: None)
    inline.deployment.save("acme", "a")
    message = inline.message()
    assert message is not None
    slot.run_tenant(inline.runtime, *message)
    inline.deployment.save("acme", "b")
    slot.run_tenant(inline.runtime, *message)
    assert inline.seen == ["a"]
    assert inline.state() is State.QUEUED


def test_a_batch_knows_whether_its_run_still_holds_the_tenant(inline: Inline) -> None:
    standing: list[bool] = []
    kept: list[Batch] = []

    def ask(batch: Batch) -> None:
        kept.append(batch)
        standing.append(batch.owned)
        inline.deployment.redis.flushdb()
        deadline = time.monotonic() + 10
        while batch.owned and time.monotonic() < deadline:
            time.sleep(0.01)
        standing.append(batch.owned)
        with pytest.raises(RetryAfter):
            list(batch)

    inline.handle(ask)
    inline.deployment.save("acme", "a")
    inline.run_all()
    assert standing == [True, False]
    assert [record.external_id for record in kept[0]] == ["a"], "after the call it is a list as any other"


@pytest.mark.parametrize("deployment", [{"runner_ttl": 0.5}], indirect=True)
def test_a_process_that_was_frozen_while_its_run_began_knows_that_it_was_replaced(
    inline: Inline, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = inline.runtime.gate
    begin = gate.begin_many
    owned: list[bool] = []

    def freeze(runs: Sequence[tuple[RunKey, int]], worker: str) -> list[Begun | Answer]:
        begun = begin(runs, worker)
        if not frozen:
            frozen.extend(begun)
            wait_until(lambda: gate.expire("invoices", ["acme"]) == [Answer.REISSUED], "replaced")
        return begun

    frozen: list[Begun | Answer] = []
    monkeypatch.setattr(gate, "begin_many", freeze)
    inline.handle(lambda batch: owned.append(batch.owned))
    inline.deployment.save("acme", "a")
    inline.run_all()
    assert isinstance(frozen[0], Begun)
    assert owned[0] is False
    assert inline.state() is State.IDLE


def test_a_batch_is_a_sequence_of_its_records(inline: Inline) -> None:
    batches: list[Batch] = []
    inline.handle(batches.append)
    for number in ("a", "b", "c"):
        record_invoice(inline.deployment.engine, "acme", number, {"number": number})
    inline.deployment.notify_event.delay("acme")
    inline.run_all()
    (batch,) = batches
    assert (len(batch), batch[0].external_id, batch[-1].document) == (3, "a", {"number": "c"})
    assert [record.external_id for record in batch[1:]] == ["b", "c"]
    assert repr(batch) == "<Batch invoices 'acme': 3 records>"
    assert len({record.idempotency_key for record in batch}) == 3


def test_a_tenant_whose_run_ends_while_a_base_round_looks_gets_a_run_that_finds_nothing_at_the_most(
    inline: Inline, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a tenant with a runner
    inline.handle(lambda _: None)
    inline.deployment.save("acme", "a")
    remind = inline.runtime.gate.remind

    def run_before_the_reminders(*args: Any, **how: Any) -> list[Answer]:
        inline.run_all()
        return remind(*args, **how)

    # when its run ends after Postgres was asked for what is pending and before Redis is told
    monkeypatch.setattr(inline.runtime.gate, "remind", run_before_the_reminders)
    reconcile(inline.runtime, "invoices")
    inline.run_all()
    # then nothing is delivered twice, and one that really has no runner gets one
    assert inline.seen == ["a"]
    monkeypatch.undo()
    inline.deployment.save("acme", "b", notify=False)
    reconcile(inline.runtime, "invoices")
    assert inline.runtime.gate.look("invoices", ["acme"])[0].deadline_ms is not None
