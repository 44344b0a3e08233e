"""Runs of a tenant: a burst with a real worker, and the story of one run in this process."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from taskbridge.common.run_key import RunKey
from taskbridge.declaring.batch import Batch, RetryAfter
from taskbridge.gate import Answer, Begun, State
from tests.deployment import Deployment
from tests.inline import Inline
from tests.waiting import wait_until

NUMBERS = [f"{number:03}" for number in range(50)]


# A pass of the poller may fall between a commit and its event; a run that uses up its budget is followed by another.
@pytest.mark.e2e
@pytest.mark.parametrize(
    "deployment", [{"tail_interval": 60.0, "base_interval": 600.0, "run_budget": 60.0}], indirect=True
)
def test_a_burst_makes_two_runs_and_none_without_records(deployment: Deployment) -> None:
    first, *others = NUMBERS
    with deployment.worker(), deployment.engine.connect() as connection:
        # given a handler at work with the first event of a burst: it cannot write into the ledger
        connection.exec_driver_sql("LOCK TABLE ledger IN SHARE MODE")
        deployment.save("acme", first)
        wait_until(lambda: deployment.rows("SELECT 1 FROM pg_locks WHERE NOT granted"), "handler at work")
        # when 49 more come before it ends
        for number in others:
            deployment.save("acme", number)
        connection.commit()
        deployment.wait_until_idle()
        # then one more run takes them all, in more than one batch where the first call took long
        batch, *later = deployment.delivered("acme")
        assert (batch, [number for numbers in later for number in numbers]) == ([first], others)
        # The history has a run shortly after its tenant is idle.
        history = "SELECT events, records FROM taskbridge.runs ORDER BY began_at"
        wait_until(lambda: len(deployment.rows(history)) == 2, "both runs are in the history")
        assert [tuple(run) for run in deployment.rows(history)] == [(1, 1), (len(others), len(others))]
        (counts,) = deployment.rows("SELECT runs, events FROM taskbridge.sync_cursors")
        assert (counts.runs, counts.events) == (2, len(NUMBERS))
        assert deployment.deliveries() == [("acme", number) for number in NUMBERS]


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
    inline.deployment.execute(
        "INSERT INTO taskbridge.sync_cursors (pipeline, tenant, owner) VALUES ('invoices', 'acme', %s)", (ahead,)
    )
    inline.deployment.save("acme", "a")
    assert inline.run_all() == 2
    assert inline.seen == ["a"]
    assert inline.state() is State.IDLE
    ((owner,),) = inline.deployment.rows("SELECT owner FROM taskbridge.sync_cursors")
    assert owner > ahead


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
