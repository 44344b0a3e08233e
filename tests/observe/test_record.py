"""Where a record is and what became of it: found by what people know of it, and told step by step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from taskbridge import Batch, LatencyNeutral
from taskbridge.gate import State
from taskbridge.integration.app import make_app
from taskbridge.observe import history
from taskbridge.observe import record as record_answers
from taskbridge.observe.context import Context
from taskbridge.observe.record import Story
from taskbridge.process.runtime import runtime_of
from taskbridge.store import (
    Incoming,
    Quarantine,
    audit,
    execute,
    receive_statement,
    record,
    record_many,
)
from taskbridge.worker.poller import poll_changes
from tests.deployment import Deployment
from tests.inline import Inline
from tests.observe.conftest import PIPELINES
from tests.store.adopting import run
from tests.waiting import wait_until

MODULE: Final = "tests.pipelines_of_states"
SPACING: Final = LatencyNeutral().spacing


def told(context: Context, tenant: str, key: str, state: str, pipeline: str = "orders") -> Story:
    """Wait until a record has this state, and the history the run that gave it; return its story."""

    def asked() -> Story | None:
        found = record_answers.story(context, "orders", tenant, key, pipeline)
        assert found is not None
        return found if found.state == state and found.note is None else None

    story = wait_until(asked, f"{key} is {state}")
    assert story is not None
    return story


def in_order(story: Story) -> list[str]:
    """Return what happened, once it is seen that the times are in order."""
    times = [step.at for step in story.steps if step.at is not None]
    assert times == sorted(times), story
    return [step.what for step in story.steps]


@pytest.mark.e2e
def test_each_way_of_a_record_is_told_with_its_runs(deployment: Deployment, context: Context) -> None:
    execute(deployment.engine, receive_statement(Incoming("orders", "whk-1", "acme", "1", None, '{"seconds": 0.5}')))
    record(deployment.engine, "orders", "bolt", "rejected", {"do": "reject"})
    record(deployment.engine, "orders", "cask", "failing", {"do": "fail"})
    with deployment.worker(TASKBRIDGE_PIPELINES=MODULE):
        handled = told(context, "acme", "1", "handled")
        assert in_order(handled) == ["received", "recorded", "started", "read", "handled"]
        first, read = handled.steps[2], handled.steps[3]
        assert first.token == read.token is not None
        assert first.sentence == f"run {first.token} began because a worker found the record before any event"
        assert read.sentence == f"read by run {read.token} on the worker worker-0@test"
        assert handled.steps[0].sentence == "received as the webhook 'whk-1'"
        assert handled.note is None

        rejected = told(context, "bolt", "rejected", "quarantined")
        assert in_order(rejected) == ["recorded", "started", "read", "rejected"]
        assert rejected.steps[-1].sentence == "rejected by the handler: the total is <b>negative</b>"

        failed = told(context, "cask", "failing", "quarantined")
        # It failed with its batch and alone, and left with the run that put it into quarantine.
        assert in_order(failed)[0:2] == ["recorded", "started"]
        assert in_order(failed)[-1] == "quarantined"
        assert "failed" in in_order(failed)
        assert "no currency" in failed.steps[-1].sentence

        for number in ("2", "3"):
            with deployment.engine.begin() as connection:
                # No pass of the poller falls between the record and its event.
                connection.exec_driver_sql("LOCK TABLE taskbridge.tails")
                record(deployment.engine, "orders", "acme", number, {})
                # The burst lasts for as long as a slow machine may need.
                deployment.gate.notify("orders", "acme", replace(SPACING, lease=60_000))
            told(context, "acme", number, "handled")
        absorbed = told(context, "acme", "3", "handled")
        assert in_order(absorbed) == ["recorded", "absorbed", "read", "handled"]
        assert absorbed.steps[1].at == absorbed.steps[0].at
        assert absorbed.steps[1].sentence == "written while its tenant had a runner, which absorbed its event"
        begun = told(context, "acme", "2", "handled").steps[1]
        assert begun.sentence == f"run {begun.token} began, started by its event"
        assert begun.at in {one.began_at for one in history.runs(context, "orders", "acme")}


@pytest.mark.parametrize("events", [0, 2])
def test_a_record_that_was_written_while_there_was_a_runner_has_an_event_only_where_one_came(
    deployment: Deployment, context: Context, events: int
) -> None:
    """Who writes by SQL alone sends none."""
    inline = Inline(deployment)

    def writes_another(batch: Batch) -> None:
        if batch[0].external_id == "1":
            record(deployment.engine, "orders", "acme", "2", {})
            for _ in range(events):
                deployment.gate.notify("orders", "acme", SPACING)

    inline.handle(writes_another, pipeline="orders", policy=LatencyNeutral(lease=60, tick=0.001))
    poll_changes(inline.runtime, "orders")
    record(deployment.engine, "orders", "acme", "1", {})
    poll_changes(inline.runtime, "orders")
    inline.run_all()
    poll_changes(inline.runtime, "orders")
    deployment.gate.expire("orders", ["acme"])
    inline.run_all()

    (step,) = [one for one in told(context, "acme", "2", "handled").steps if one.what == "absorbed"]
    assert step.sentence.endswith(", which absorbed its event" if events else "; no event is known")


@pytest.mark.e2e
def test_a_run_that_died_comes_before_the_one_that_read_the_record(deployment: Deployment, context: Context) -> None:
    record(deployment.engine, "orders", "doze", "1", {"seconds": 2})
    deployment.gate.notify("orders", "doze", SPACING)
    with deployment.worker("-P", "solo", TASKBRIDGE_PIPELINES=MODULE) as dies:
        wait_until(lambda: deployment.gate.look("orders", ["doze"])[0].state is State.RUNNING, "a run is on", 20)
        dies.kill()
    with deployment.worker("-P", "solo", TASKBRIDGE_PIPELINES=MODULE):
        story = told(context, "doze", "1", "handled")
    assert in_order(story) == ["recorded", "started", "failed", "read", "handled"]
    assert story.steps[1].token == story.steps[2].token != story.steps[3].token


@pytest.mark.e2e
def test_another_try_is_told_with_who_asked_for_it(deployment: Deployment, context: Context, tmp_path: Path) -> None:
    mended, orders = tmp_path / "mended", Quarantine(deployment.engine, "orders")
    record(deployment.engine, "orders", "bolt", "r", {"do": "reject", "until": str(mended)})

    def decide(action: str) -> None:
        # Else the run that is on would make the next try too.
        wait_until(lambda: deployment.gate.look("orders", ["bolt"])[0].state is State.IDLE, "no run is on", 20)
        audit(deployment.engine, "ada", action, pipeline="orders", tenant="bolt", key="r")
        found, _ = orders.find("orders", tenant="bolt", discarded=True)
        (orders.retry if action == "retry" else orders.discard)("orders", found)
        deployment.gate.notify("orders", "bolt", SPACING)

    with deployment.worker(TASKBRIDGE_PIPELINES=MODULE):
        rejected = told(context, "bolt", "r", "quarantined")
        decide("retry")
        wait_until(
            lambda: told(context, "bolt", "r", "quarantined").steps[-1].at != rejected.steps[-1].at,
            "it is in quarantine again",
        )
        again = told(context, "bolt", "r", "quarantined")
        assert in_order(again) == ["recorded", "started", "read", "retrying", "rejected"]
        assert again.steps[3].sentence == "ada requested a retry"
        assert again.steps[2].token == rejected.steps[-1].token is not None
        assert again.steps[-1].token is None, "it was another run"

        decide("discard")
        gone = told(context, "bolt", "r", "discarded")
        assert (gone.steps[-1].what, gone.steps[-1].sentence) == ("discarded", "ada discarded it")
        mended.touch()
        decide("retry")
        well = told(context, "bolt", "r", "handled")
        assert (well.steps[-1].what, well.steps[-1].sentence) == ("handled", "handled after a retry")
        assert in_order(well).count("retrying") == 2


def test_a_search_without_redis_finds_what_postgres_has(deployment: Deployment) -> None:
    settings = replace(deployment.settings, redis_url="redis://127.0.0.1:1/0")
    away = runtime_of(make_app(settings).app)
    context = Context(deployment.engine, away.gate, PIPELINES, settings)
    record(deployment.engine, "orders", "acme", "1", {})
    run(deployment.engine, "INSERT INTO taskbridge.pipelines (pipeline, source) VALUES ('orders', 'orders')")
    assert [(one.kind, one.tenant) for one in record_answers.find(context, "1")[0]] == [("record", "acme")]
    assert [one.kind for one in record_answers.find(context, "acme")[0]] == ["tenant"]
    # a key is found however it is spelled, also where nobody reads its source
    record(deployment.engine, "nobodys", "acme", '["eu", "211"]', {})
    (found,) = record_answers.records(context, '[ "eu","211"]')
    assert (found.source, found.pipeline) == ("nobodys", None)


def test_a_search_finds_tenants_keys_messages_and_deliveries(deployment: Deployment, context: Context) -> None:
    engine = deployment.engine
    run(engine, "INSERT INTO taskbridge.pipelines (pipeline, source) VALUES ('orders', 'orders')")
    execute(engine, receive_statement(Incoming("orders", "evt-7", "Zürich AG", "inv-7", None, "{}")))
    for n in (8, 9):
        execute(engine, receive_statement(Incoming("orders", f"evt-{n}", "acme", f"inv-{n}", None, "{}")))

    assert [(one.kind, one.pipeline, one.tenant) for one in record_answers.find(context, "acme")[0]] == [
        ("tenant", "orders", "acme")
    ]
    assert [(one.kind, one.tenant) for one in record_answers.find(context, "Zür")[0]] == [("tenant", "Zürich AG")]
    (found,) = record_answers.find(context, "inv-7")[0]
    assert (found.kind, found.pipeline, found.tenant, found.key) == ("record", "orders", "Zürich AG", "inv-7")
    assert found.sentence.endswith(": pending in orders")
    (alone,) = record_answers.find(context, "evt-7")[0]
    assert (alone.kind, alone.tenant, alone.key) == ("delivery", "Zürich AG", "inv-7")
    assert {(one.key, "or another" in one.sentence) for one in record_answers.find(context, "evt-8")[0]} == {
        ("inv-8", False)
    }
    record(engine, "orders", "Zürich AG", "inv-7", {"changed": True})
    (changed,) = record_answers.find(context, "evt-7")[0]
    assert changed.sentence == "orders: the webhook was received; its record has since changed, or was pruned"
    assert [record_answers.find(context, text)[0] for text in ("", "nothing", "\n")] == [[], [], []]


def test_a_search_that_does_not_look_everywhere_says_so(
    deployment: Deployment, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_many(deployment.engine, "orders", [(f"tenant {number:02}", f"key {number}", {}) for number in range(90)])
    (found,), note = record_answers.find(context, "key 89")
    assert (found.tenant, note) == ("tenant 89", None)
    (line,) = record_answers.records(context, "key 88", tenant="tenant 88")
    assert line.tenant == "tenant 88"
    monkeypatch.setattr(record_answers, "MOST_SEARCHED", 50)
    assert record_answers.find(context, "key 1")[0][0].tenant == "tenant 01"
    not_found, note = record_answers.find(context, "key 89")
    assert not_found == []
    assert note is not None
    assert "only 11 tenants were searched" in note
    run(deployment.engine, "CREATE INDEX ON taskbridge.records (key)")
    (found,), note = record_answers.find(context, "key 89")
    assert (found.tenant, note) == ("tenant 89", None)
