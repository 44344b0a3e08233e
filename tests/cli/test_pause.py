"""`taskbridge pause`, `resume` and `drain`: what is held, what goes on, and what is left."""

from __future__ import annotations

import os
import pwd

import pytest
import redis
from sqlalchemy import Engine

from taskbridge.gate import Keys, Queue, State
from taskbridge.store import Pauses, record_invoice
from tests.cli.program import Program
from tests.cli.scenes import hold_back
from tests.cli.test_bad_input import assert_one_clear_line
from tests.quarantined import put_in_quarantine
from tests.store.adopting import Reader
from tests.waiting import wait_until


@pytest.fixture
def invoices(taskbridge: Program, engine: Engine) -> Program:
    """Servers with two invoices of France and one of Malta, all pending, none notified."""
    for tenant, number in (("France", "1"), ("France", "2"), ("Malta", "1")):
        record_invoice(engine, tenant, number, {})
    return taskbridge


def paused(engine: Engine, pipeline: str = "invoices") -> set[str]:
    """Return what is paused, the pipeline itself as `*`."""
    found = Pauses(engine).of(pipeline)
    return {*found.tenants, *(["*"] if found.whole else [])}


def wait_until_it_looks(engine: Engine) -> None:
    """Wait until another process has looked for pauses."""
    looks = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
        "AND query LIKE '%%FROM \"taskbridge\".pauses%%' AND query_start > %s"
    )
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        now = connection.exec_driver_sql("SELECT clock_timestamp()").scalar_one()
        wait_until(lambda: connection.exec_driver_sql(looks, (now,)).scalar_one(), "another look")


def test_a_pipeline_and_its_tenants_are_resumed_apart(
    invoices: Program, engine: Engine, gate_redis: redis.Redis, keys: Keys
) -> None:
    Reader(engine, "invoices", "invoices").records("Malta")
    assert invoices("pause", "--json").json["paused_by"] == pwd.getpwuid(os.getuid()).pw_name
    invoices("pause", "France")
    of_tenant = invoices("resume", "France")
    assert "invoices itself is still paused: resume it with `taskbridge resume --pipeline invoices`" in of_tenant.stderr
    # A worker of another test may still write keys of its own while it ends.
    assert list(gate_redis.scan_iter(f"*{keys.prefix}*")) == []
    record_invoice(engine, "Malta", "2", {})
    invoices("pause", "France")
    of_pipeline = invoices("resume", "--json")
    # of Malta alone; nobody else has something pending that is not paused
    assert (of_pipeline.json["resumed"], of_pipeline.json["started"]) == (True, 1)
    assert gate_redis.llen(keys.queue(Queue.FIRST)) == 1
    assert paused(engine) == {"France"}
    assert invoices("resume", "France", "--json").json["started"] == 1


@pytest.mark.parametrize("tenant", [("France",), ()])
@pytest.mark.parametrize("by_pause", [True, False])
def test_a_tenant_that_is_held_runs_at_once_when_it_is_resumed(
    taskbridge: Program, engine: Engine, gate_redis: redis.Redis, keys: Keys, tenant: tuple[str, ...], by_pause: bool
) -> None:
    """By a pause, though nothing of it is pending, or by a back-off."""
    if not by_pause:
        record_invoice(engine, "France", "1", {})
    taskbridge("pause", *tenant)
    gate = hold_back(gate_redis, keys, "France", paused=by_pause)
    assert taskbridge("resume", *tenant).status == 0
    assert gate.paused("invoices") == []
    assert gate.look("invoices", ["France"])[0].state is State.QUEUED


def test_what_was_resumed_while_redis_is_away_is_said_to_be_kept(
    invoices: Program, engine: Engine, refusable: str, gate_redis: redis.Redis
) -> None:
    invoices("pause")
    gate_redis.acl_setuser("importer", enabled=True, categories=["-@scripting"])
    ended = invoices("resume", TASKBRIDGE_REDIS_URL=refusable)
    assert_one_clear_line(ended, "Redis refuses", status=1)
    assert "The change has been saved" in ended.stderr
    assert paused(engine) == set()


def test_drain_waits_for_what_was_committed_before_it_and_for_nothing_else(invoices: Program, engine: Engine) -> None:
    reader = Reader(engine, "invoices", "invoices")
    with engine.connect() as other:
        record_invoice(engine, "France", "uncommitted", {}, other)
        with invoices.started("drain", "--json") as running:
            wait_until(lambda: "waiting for 3 pending records" in running.stderr, "drain waits")
            reader.records("France")
            put_in_quarantine(engine, "France", "1")
            other.commit()
            for tenant in ("France", "Malta"):
                record_invoice(engine, tenant, "later", {})
            for _ in range(2):
                wait_until_it_looks(engine)
            assert (running.process.poll(), paused(engine)) == (None, set())
            reader.records("Malta")
            ended = running.end()
    assert ended.status == 0, ended.stderr
    assert ended.json["drained"] is True
    assert paused(engine) == {"*"}


def test_drain_that_is_not_done_in_time_says_what_is_left_and_pauses_nothing(invoices: Program, engine: Engine) -> None:
    ended = invoices("drain", "--timeout", "1.5", "--json")
    assert ended.status == 1
    assert "--timeout" in ended.stderr.splitlines()[-1]
    left = {"France": 2, "Malta": 1}
    assert ended.json | {"drained": False, "paused": False, "left": left, "tenant": None} == ended.json
    assert ended.json["seconds"] >= 1.5
    assert paused(engine) == set()


def test_drain_that_is_interrupted_pauses_nothing(invoices: Program, engine: Engine) -> None:
    with invoices.started("drain") as running:
        wait_until(lambda: "waiting for 3 pending records" in running.stderr, "drain waits")
        running.process.terminate()
        ended = running.end()
    assert ended.status == 128 + 15
    assert paused(engine) == set()
