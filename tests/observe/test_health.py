"""How all stands: the colour of each trouble, what fails by its error, and lists of tenants."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import Engine

from taskbridge import LatencyNeutral
from taskbridge.common.run_key import RunKey
from taskbridge.gate import Answer
from taskbridge.observe import health, status
from taskbridge.observe.context import Context
from taskbridge.process.runtime import runtime_of
from taskbridge.store import record
from tests.deployment import Deployment
from tests.observe.conftest import PIPELINES
from tests.store.adopting import run

LOOKED = (
    "INSERT INTO taskbridge.tails (pipeline, kind, snapshot) "
    "SELECT p, 'tail', pg_current_snapshot() FROM unnest(ARRAY['broken', 'calls', 'narrow', 'orders', 'slow']) p "
    "ON CONFLICT (pipeline, kind) DO UPDATE SET stored_at = now()"
)
FAILING = (
    "INSERT INTO taskbridge.sync_cursors (pipeline, tenant, failures, runs, events, records, last_error, failed_at) "
    "SELECT 'orders', 't' || n, n % 3, n, 10 - n, n, CASE WHEN n % 3 > 0 THEN 'ValueError: ' || n % 3 END, now() "
    "FROM generate_series(1, 6) n"
)


QUARANTINED = (
    "INSERT INTO taskbridge.quarantine (pipeline, tenant, external_id, revision, reason) "
    "SELECT 'orders', tenant, key, revision, 'ValueError: 1' FROM taskbridge.records WHERE tenant = 'q'"
)


def quarantined(engine: Engine) -> None:
    record(engine, "orders", "q", "7", {})
    run(engine, QUARANTINED)


def test_health_has_one_colour_and_names_what_is_wrong(deployment: Deployment, context: Context) -> None:
    never = health.health(context)
    assert never.colour == "red"
    assert never.sentence == "no worker is running: none has polled any of the 5 pipelines"
    assert len(never.findings) == 1, "one cause, one finding"
    assert all(one.unseen for one in never.pipelines), "records that nobody may have found are not denied"
    run(deployment.engine, LOOKED)
    well = health.health(context)
    assert (well.colour, well.findings) == ("green", [])
    assert not any(one.unseen for one in well.pipelines)
    assert well.sentence == "all is well: no tenant is active, nothing is failing, and nothing is stuck"

    run(deployment.engine, FAILING)
    quarantined(deployment.engine)
    record(deployment.engine, "orders", "acme", "1", {})
    runtime_of(deployment.app).pauses.pause("orders", "acme")
    troubled = health.health(context)
    (orders,) = (one for one in troubled.pipelines if one.pipeline == "orders")
    assert (troubled.colour, orders.backlog.failing, orders.backlog.quarantined) == ("yellow", 4, 1)
    assert (orders.backlog.pending, orders.unseen) == (1, False), "the records of paused tenants are counted"
    assert [one.sentence for one in troubled.findings] == [
        "orders: 4 tenants are failing, such as 't1'",
        "orders: 1 record is in quarantine",
        "orders: 1 tenant is paused, such as 'acme'",
    ]
    assert [(one.pipeline, one.tenant) for one in troubled.findings] == [
        ("orders", None),
        ("orders", None),
        ("orders", "acme"),
    ]
    # errors are grouped by their text
    assert [(one.error, one.tenants, one.quarantined, one.sample) for one in status.failing(context, "orders")] == [
        ("ValueError: 1", 2, 1, ["q", "t1", "t4"]),
        ("ValueError: 2", 2, 0, ["t2", "t5"]),
    ]
    assert status.failing(context, "calls") == []
    run(
        deployment.engine,
        "INSERT INTO taskbridge.records (source, key, reason, document) VALUES ('x', 'm', 'why', '{}')",
    )
    (unmatched,) = (one for one in health.health(context).findings if one.pipeline is None)
    assert unmatched.sentence == "x: 1 message matches no criterion"
    run(deployment.engine, "UPDATE taskbridge.tails SET stored_at = now() - interval '1 min' WHERE pipeline = 'calls'")
    assert health.health(context).sentence.startswith("calls: no worker has polled for records for ")
    assert health.health(context).colour == "red"


ENDED = (
    "INSERT INTO taskbridge.runs (pipeline, tenant, token, began_at, ended_at, reason, worker, events, burst_run, "
    "records, rejected, outcome)"
    " SELECT 'calls', 'a', 'x', at, at, 'event', '', 1, 1, 1, 0, 'handled' FROM (SELECT {} AS at) r"
)


def waits_for_long(deployment: Deployment, tenant: str) -> None:
    """Let its message be 90 s old. Those that are published again have a later deadline each time."""
    runtime = runtime_of(deployment.app)
    (status,) = runtime.gate.look("orders", [tenant])
    older = f"{int((status.token or '')[:16]) - 90_000_000}-aaaaaa"
    deployment.redis.hset(runtime.keys.runner("orders", tenant), "token", older)
    deployment.redis.zincrby(runtime.keys.due("orders"), 60_000, tenant)


@pytest.mark.parametrize(
    ("ended", "colour", "said"),
    [
        (None, "yellow", "orders: a run message has been in the queue for 9"),
        ("now() - interval '50 s'", "red", "orders: a run message has been in the queue for 9"),
        ("now()", "yellow", "orders: the queue is long: a run message has been in the queue for 9"),
    ],
)
def test_a_run_message_that_waits_for_long_is_named_though_its_deadline_moves(
    deployment: Deployment, context: Context, ended: str | None, colour: str, said: str
) -> None:
    run(deployment.engine, LOOKED)
    gate = runtime_of(deployment.app).gate
    for tenant in ("late", "new"):
        gate.notify("orders", tenant, PIPELINES["orders"].policy.spacing)
    assert (health.health(context).colour, context.queued(["orders"])) == ("green", 2)
    waits_for_long(deployment, "late")
    if ended is not None:
        run(deployment.engine, ENDED.format(ended))
    (found,) = health.health(context).findings
    assert (found.colour, found.sentence.startswith(said), found.tenant) == (colour, True, "late"), found
    assert ("no run has ended in the last 30 s" in found.sentence) == (colour == "red")
    assert ("frozen" in found.remedy) == (ended != "now()")
    run(deployment.engine, "UPDATE taskbridge.tails SET stored_at = now() - interval '1 h' WHERE pipeline = 'orders'")
    assert "in the queue" not in str(health.health(context).findings), "one cause, one finding"


def test_an_open_circuit_is_red_while_somebody_waits_for_it(deployment: Deployment, context: Context) -> None:
    run(deployment.engine, LOOKED)
    keys = runtime_of(deployment.app).keys
    deployment.redis.hset(keys.circuit("orders"), mapping={"until": 1, "probes": 2, "opened": 1})
    (quiet,) = health.health(context).findings
    assert quiet.colour == "yellow"
    assert quiet.sentence.endswith("no tenant has any work: the next record of any tenant will be its probe")
    deployment.gate.notify("orders", "acme", LatencyNeutral().spacing)
    (found,) = health.health(context).findings
    assert found.colour == "red"


def a_run_is_on(deployment: Deployment, pipeline: str, tenant: str, seconds: int) -> None:
    """Let a run of the tenant be on that began so long ago, and gave its last heartbeat just now."""
    gate, keys = deployment.gate, runtime_of(deployment.app).keys
    gate.notify(pipeline, tenant, LatencyNeutral().spacing)
    (runner,) = gate.look(pipeline, [tenant])
    assert runner.token is not None
    gate.begin_many([(RunKey(pipeline, tenant, runner.token), 0)], "celery@two")
    deployment.redis.hincrby(keys.runner(pipeline, tenant), "began", -1000 * seconds)


def test_a_run_whose_call_does_not_come_back_is_named_with_its_worker(deployment: Deployment, context: Context) -> None:
    run(deployment.engine, LOOKED)
    for number in range(150):
        deployment.gate.notify("orders", f"new {number}", LatencyNeutral().spacing)
        deployment.redis.zincrby(runtime_of(deployment.app).keys.due("orders"), -600, f"new {number}")
    a_run_is_on(deployment, "orders", "acme", 290)
    assert health.health(context).colour == "green"
    a_run_is_on(deployment, "orders", "bolt", 400)
    a_run_is_on(deployment, "orders", "cask", 310)
    (found,) = health.health(context).findings
    assert (found.colour, found.tenant) == ("yellow", "bolt")
    assert found.sentence == (
        "orders: the run of 'bolt' on the worker celery@two has been running for 7 min, and 1 other run for too long: "
        "its handler does not return"
    )


@pytest.mark.parametrize(
    ("limit", "seconds", "colour", "is_long"),
    [(None, 400, "red", True), (1800, 3_550, "yellow", False), (1800, 3_700, "red", True)],
)
def test_a_queue_behind_runs_that_may_take_long_is_long_and_behind_those_that_may_not_it_stands_still(
    deployment: Deployment, limit: float | None, seconds: int, colour: str, is_long: bool
) -> None:
    run(deployment.engine, LOOKED)
    run(deployment.engine, ENDED.format("now() - interval '50 s'"))
    deployment.gate.notify("orders", "late", LatencyNeutral().spacing)
    waits_for_long(deployment, "late")
    a_run_is_on(deployment, "orders", "acme", seconds)
    own = {**PIPELINES, "orders": replace(PIPELINES["orders"], soft_time_limit=limit)}
    found = health.health(Context(deployment.engine, runtime_of(deployment.app).gate, own, deployment.settings))
    assert found.colour == colour
    assert [one.tenant for one in found.findings] == (["late", "acme"] if is_long else ["late"])


def test_a_run_that_was_replaced_is_told_of_with_its_worker_for_an_hour(
    deployment: Deployment, context: Context
) -> None:
    run(deployment.engine, LOOKED)
    gate, keys = deployment.gate, runtime_of(deployment.app).keys
    a_run_is_on(deployment, "orders", "acme", 0)
    assert health.health(context).colour == "green"
    deployment.redis.zadd(keys.due("orders"), {"acme": 0})
    assert gate.expire("orders", ["acme"]) == [Answer.REISSUED]

    now = health.health(context)
    told = (
        "a run on the worker celery@two sent no heartbeat and was replaced 0 min ago: its process died or is frozen, "
        "or Redis was not available to it"
    )
    assert (now.colour, [one.sentence for one in now.findings]) == ("yellow", [f"orders: {told}"])
    deployment.redis.hincrby(keys.counts("orders"), "replaced_at", -3_601_000)
    assert health.health(context).colour == "green"


def test_errors_that_differ_in_addresses_and_ids_alone_are_of_one_kind(
    deployment: Deployment, context: Context
) -> None:
    run(
        deployment.engine,
        "INSERT INTO taskbridge.sync_cursors (pipeline, tenant, failures, last_error, failed_at) "
        "SELECT 'orders', 't' || n, 1, 'HTTPError: ' || (CASE WHEN n > 2 THEN 503 ELSE 429 END) || E' for \\'http://erp/o/'"
        "|| n || E'\\'\\n id ' || md5(n::text) || ', order A-' || n || ' of ' || 4000 + n || ', took ' || n || '.5 s', "
        "now() - n * interval '1 min' FROM generate_series(1, 6) n",
    )
    found = status.failing(context, "orders")
    assert [(one.tenants, one.texts, one.sample, one.cut) for one in found] == [
        (4, 4, ["t3", "t4", "t5", "t6"], False),
        (2, 2, ["t1", "t2"], False),
    ]
    assert "http://erp/o/3" in found[0].error, "the last one stands for all"
    assert found[0].kind == "HTTPError: 503 for '<url>' id <id>, order A-<n> of <n>, took <n> s"


DISCARDED = (
    "INSERT INTO taskbridge.quarantine (pipeline, tenant, external_id, revision, reason, discarded_at) "
    "SELECT 'orders', 'a', n::text, 1, 'ValueError: given up', now() FROM generate_series(1, 2500) n"
)


def test_what_is_in_quarantine_is_seen_behind_much_that_was_discarded_and_counts_that_were_cut_say_so(
    deployment: Deployment, context: Context
) -> None:
    run(deployment.engine, DISCARDED)
    quarantined(deployment.engine)
    assert sum(one.backlog.quarantined for one in health.health(context).pipelines) == 1
    assert [(one.error, one.quarantined) for one in status.failing(context, "orders")] == [("ValueError: 1", 1)]
    assert status.tenants(context, "orders", sort="failures")[0].tenant == "q"
    run(
        deployment.engine,
        "INSERT INTO taskbridge.records (source, tenant, key, document) "
        "SELECT 'orders', 'q', 'm' || n, '{}' FROM generate_series(1, 1000) n",
        f"{QUARANTINED} AND key <> '7'",
    )
    (group,) = status.failing(context, "orders")
    assert (group.quarantined, group.cut) == (1_000, True)
