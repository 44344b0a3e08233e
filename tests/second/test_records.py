"""Records of pipelines with criteria: one per message, never another pipeline's, matched again when criteria change."""

from __future__ import annotations

from collections.abc import Callable
from functools import partialmethod
from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy import Engine, event

from taskbridge.declaring.criteria import Criterion, Match, Unmatched
from taskbridge.declaring.pipeline import Pipeline
from taskbridge.declaring.policy import DelaySinceLastRun
from taskbridge.errors import InvalidInput, UnknownPipeline
from taskbridge.gate import Answer, Keys
from taskbridge.process.runtime import runtime_of
from taskbridge.producer.notify import notify, notify_many, send
from taskbridge.producer.recording import match_again, record_event
from taskbridge.store import read_unmatched
from taskbridge.store.cursor import Cursors
from taskbridge.worker.poller import Poller, last_runs_restored, poll_changes, reconcile
from tests.deployment import Deployment
from tests.second.world import ERROR, MINUTE, PIPELINE, POLICY, WARNING, World
from tests.waiting import wait_until


def declare(world: World, name: str, *criteria: Criterion) -> None:
    """Declare a pipeline whose handler notes what it is given; another one of the name is replaced."""
    pipelines = world.runtime.pipelines
    pipelines._declared.pop(name, None)
    pipelines.declare(Pipeline(name, world._take, DelaySinceLastRun(criteria), 500))


def at_the_servers_time(world: World) -> None:
    """Set the clock to that of the servers, by which keys end and Postgres dates runs."""
    seconds, microseconds = world.runtime.redis.time()
    world.gate.start_at(int(seconds) * 1_000_000 + int(microseconds))


def test_an_event_without_data_is_due_by_the_smallest_delay_of_what_waits(world: World) -> None:
    # given a tenant that has just run, and records that somebody else committed
    world.record("WARNING", "A")
    world.run_all()
    last = world.last_run("A")
    assert last is not None
    with world.runtime.engine.begin() as connection:
        for level in ("WARNING", "ERROR", "WARNING"):
            record_event(world.app, PIPELINE, {"level": level, "service": "A"}, connection=connection)
    assert world.due("A") is None
    # when they say so
    assert notify(world.app, "A", PIPELINE) is Answer.DELAYED
    # then the ERROR counts
    assert world.due("A") == last + 5 * MINUTE * 1000


def test_postgres_is_asked_once_for_the_delays_of_many_tenants(world: World) -> None:
    lasts: dict[str, int] = {}
    for tenant in "ABC":
        world.record("ERROR", tenant)
        world.run_all()
        lasts[tenant] = world.last_run(tenant) or 0
    with world.runtime.engine.begin() as connection:
        for level, tenant in (("WARNING", "A"), ("WARNING", "B"), ("ERROR", "B")):
            record_event(world.app, PIPELINE, {"level": level, "service": tenant}, connection=connection)
    asked: list[object] = []
    event.listen(world.runtime.engine, "checkout", lambda *it: asked.append(it))
    assert notify_many(world.app, ["A", "B", "C", "A"], PIPELINE) == [Answer.DELAYED] * 4
    assert len(asked) == 1
    minutes = {tenant: ((world.due(tenant) or 0) - last) / (MINUTE * 1000) for tenant, last in lasts.items()}
    # the smallest where nothing waits
    assert minutes == {"A": 15, "B": 5, "C": 5}
    events = {(PIPELINE, tenant): None for tenant in "ABC"}
    assert send(runtime_of(world.app), [*events.items()]) == [Answer.DELAYED] * 3
    assert len(asked) == 2


def test_a_record_that_nobody_notified_is_due_when_one_with_an_event_would_be(world: World) -> None:
    poll_changes(world.runtime, PIPELINE)
    with world.runtime.engine.begin() as connection:
        record_event(world.app, PIPELINE, {"level": "ERROR", "service": "A"}, connection=connection)
    poll_changes(world.runtime, PIPELINE)
    world.run_all()
    last = world.batches[0][1]
    with world.runtime.engine.begin() as connection:
        record_event(world.app, PIPELINE, {"level": "ERROR", "service": "A"}, connection=connection)
    # Its run is due five minutes after the last one, and never earlier, whoever looks.
    poll_changes(world.runtime, PIPELINE)
    assert world.due("A") == last + 5 * MINUTE * 1000


def test_a_delay_of_30_days_survives_the_loss_of_redis(world: World) -> None:
    longest = 30 * 24 * 60 * MINUTE
    declare(world, PIPELINE, Criterion("$.level", "ERROR", "$.service", longest))
    world.record("ERROR", "A")
    world.run_all()
    assert world.record("ERROR", "A").answer is Answer.DELAYED
    poll_changes(world.runtime, PIPELINE)
    world.runtime.redis.flushdb()
    assert reconcile(world.runtime, PIPELINE) == []
    ((last_taken_ms,),) = world.inline.deployment.rows(
        "SELECT (extract(epoch FROM last_taken_at) * 1000)::bigint FROM taskbridge.sync_cursors"
    )
    (status,) = world.gate.look(PIPELINE, ["A"])
    assert status.deadline_ms == last_taken_ms + longest * 1000
    assert world.waiting("A") == 1


def test_the_loss_of_redis_costs_one_run_more_at_the_most(world: World) -> None:
    world.record("ERROR", "A")
    world.run_all()
    assert world.record("ERROR", "A").answer is Answer.DELAYED
    world.runtime.redis.flushdb()
    # An event that comes before the deadlines are rebuilt finds no last run: one run too early, with all that waits.
    assert world.record("ERROR", "A").answer is Answer.STARTED
    world.run_all()
    assert [len(ids) for _, _, ids in world.batches] == [1, 2]
    assert world.record("ERROR", "A").answer is Answer.DELAYED


def test_last_runs_come_in_pages_and_only_those_that_matter(engine: Engine) -> None:
    ages = {f"t{number:02}": number for number in range(20)}
    with engine.begin() as connection:
        for tenant, minutes in ages.items():
            connection.exec_driver_sql(
                "INSERT INTO taskbridge.sync_cursors (pipeline, tenant, last_taken_at) "
                "VALUES (%s, %s, now() - %s * interval '1 minute'), ('other', %s, now())",
                (PIPELINE, tenant, minutes, tenant),
            )
    pages = list(Cursors(engine, PIPELINE).last_runs(PIPELINE, 9 * MINUTE * 1000 + 30_000, page=4))
    assert [[tenant for tenant, _ in page] for page in pages] == [
        ["t00", "t01", "t02", "t03"],
        ["t04", "t05", "t06", "t07"],
        ["t08", "t09"],
        [],
        [],
        [],
    ]
    seconds = [(first - last) / 1000 for first, last in pairwise(ms for page in pages for _, ms in page)]
    assert seconds == pytest.approx([MINUTE] * 9, abs=0.01)


@pytest.fixture
def two_last_runs(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """A world where A and B have run, Redis has lost its data, and a page has room for one."""
    monkeypatch.setattr(Cursors, "last_runs", partialmethod(Cursors.last_runs, page=1))
    at_the_servers_time(world)
    for tenant in ("A", "B"):
        world.record("ERROR", tenant)
    world.run_all()
    world.runtime.redis.flushdb()
    return world


def test_a_redis_that_loses_its_data_while_last_runs_come_back_gets_all_of_them_anew(two_last_runs: World) -> None:
    world = two_last_runs
    restoring = last_runs_restored(world.runtime, PIPELINE)
    next(restoring)
    assert (world.last_run("A") is None, world.last_run("B") is None) == (False, True)
    world.runtime.redis.flushdb()
    for _ in restoring:
        pass
    assert world.last_run("A") is None
    reconcile(world.runtime, PIPELINE)
    for tenant in ("A", "B"):
        assert world.record("ERROR", tenant).answer is Answer.DELAYED


def test_a_long_list_of_last_runs_holds_up_no_other_pipeline(two_last_runs: World) -> None:
    world = two_last_runs
    poller = Poller(world.runtime)
    poller.poll_pages()
    assert poller.reconcile_pages() < 0.1, "there is more"
    assert (world.last_run("A") is None, world.last_run("B") is None) == (False, True)
    poller.poll_pages()
    wait_until(lambda: poller.reconcile_pages() > 0.1, "all pages", 5)
    assert world.last_run("B") is not None
    assert world.gate.rebuilt_for(PIPELINE) == POLICY.spacing.last_ttl


def test_a_lengthened_delay_counts_from_a_run_that_a_shorter_one_let_be_forgotten(world: World) -> None:
    at_the_servers_time(world)
    for delay in (300, 0.1):
        declare(world, PIPELINE, Criterion("$.level", "ERROR", "$.service", delay))
        assert reconcile(world.runtime, PIPELINE) == []
    world.record("ERROR", "A")
    world.run_all()
    wait_until(lambda: world.last_run("A") is None, "the last run is forgotten")
    declare(world, PIPELINE, Criterion("$.level", "ERROR", "$.service", 300))
    world.gate.us += 1_000_000
    assert reconcile(world.runtime, PIPELINE) == [], "nothing waits, and nobody is started"
    assert world.record("ERROR", "A").answer is Answer.DELAYED
    ((last_taken_ms,),) = world.inline.deployment.rows(
        "SELECT (extract(epoch FROM last_taken_at) * 1000)::bigint FROM taskbridge.sync_cursors"
    )
    assert world.due("A") == last_taken_ms + 300_000 - world.start_ms


def test_a_lengthened_delay_keeps_a_last_run_that_is_still_known_for_longer(world: World) -> None:
    at_the_servers_time(world)
    declare(world, PIPELINE, Criterion("$.level", "ERROR", "$.service", 60))
    world.record("ERROR", "A")
    world.run_all()
    began = world.last_run("A") or 0
    declare(world, PIPELINE, Criterion("$.level", "ERROR", "$.service", 300))
    reconcile(world.runtime, PIPELINE)
    key = Keys(world.runtime.settings.key_prefix).last(PIPELINE, "A")
    assert int(world.runtime.redis.pttl(key)) > 240_000
    assert (world.last_run("A") or 0) >= began


def test_unmatched_records_are_matched_again_after_the_criteria_changed(world: World) -> None:
    kept = world.record("INFO", "A", "m-1")
    world.record("INFO", "B", "m-2")
    other = record_event(world.app, PIPELINE, {"level": "INFO"}, "m-3")
    assert (kept.tenant, other.tenant) == (None, None)
    assert [type(found) for _, found in match_again(world.app, PIPELINE)] == [Unmatched, Unmatched, Unmatched]
    # when INFO is given a criterion
    declare(world, PIPELINE, ERROR, WARNING, Criterion("$.level", "INFO", "$.service", 60))
    done = list(match_again(world.app, PIPELINE))
    # then what it matches is run, once, and the rest has a reason of its own
    assert [record.message_id for record, _ in done] == ["m-1", "m-2", "m-3"]
    *matched, (_, unmatched) = done
    assert [found.tenant for _, found in matched if isinstance(found, Match)] == ["A", "B"]
    assert isinstance(unmatched, Unmatched)
    world.run_all()
    assert sorted(ids[0] for _, _, ids in world.batches) == ["m-1", "m-2"]
    (left,) = read_unmatched(world.runtime.engine, PIPELINE)
    assert (left.message_id, left.reason) == ("m-3", unmatched.reason)
    assert isinstance(next(match_again(world.app, PIPELINE))[1], Unmatched)
    world.run_all()
    assert len(world.batches) == 2


@pytest.mark.parametrize("message_id", ["", "x" * 201, "a\nb", 7])
def test_a_message_id_that_could_be_mistaken_is_refused(world: World, message_id: Any) -> None:
    with pytest.raises(InvalidInput, match="message id"):
        record_event(world.app, PIPELINE, {"level": "ERROR", "service": "A"}, message_id)


@pytest.mark.parametrize(
    ("pipeline", "payload", "error"),
    [
        ("nobody's", {}, UnknownPipeline),
        (PIPELINE, {"level": float("nan")}, InvalidInput),
        (PIPELINE, {"level": "\x00"}, InvalidInput),
        (PIPELINE, {"level": {1, 2}}, InvalidInput),
    ],
)
def test_what_cannot_be_recorded_is_refused_and_nothing_is_written(
    world: World, pipeline: str, payload: Any, error: type[Exception]
) -> None:
    with pytest.raises(error):
        record_event(world.app, pipeline, payload)
    assert world.inline.deployment.rows("SELECT * FROM taskbridge.records") == []


@pytest.mark.parametrize("payload", [None, [], "text", 7, [[{"level": "ERROR"}]]])
def test_a_payload_that_is_no_object_is_kept_as_unmatched(world: World, payload: Any) -> None:
    recorded = record_event(world.app, PIPELINE, payload, "m-1")
    assert recorded.tenant is None
    (kept,) = read_unmatched(world.runtime.engine, PIPELINE)
    assert kept.payload == payload


def test_eager_mode_runs_each_message_inline_without_a_delay(world: World) -> None:
    world.app.conf.task_always_eager = True
    for known in ("eager", "gate"):
        world.runtime.__dict__.pop(known)
    for _ in range(2):
        assert world.record("WARNING", "A").answer is Answer.STARTED
    assert len(world.batches) == 2
    assert world.runtime.gate.active(PIPELINE) == []


def test_invoices_are_not_recorded_as_messages(world: World, deployment: Deployment) -> None:
    def nothing(_: object) -> None:
        """Handle nothing."""

    handler: Callable[[Any], None] = nothing
    world.inline.handle(handler)
    with pytest.raises(InvalidInput, match="'invoices' has no criteria"):
        record_event(deployment.app, "invoices", {})
