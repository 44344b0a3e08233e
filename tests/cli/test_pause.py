"""`taskbridge pause`, `resume` and `drain`: what is held, what goes on, and what is left."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator

import pytest
import redis
from sqlalchemy import Connection, Engine

from taskbridge.common.run_key import RunKey
from taskbridge.gate import Keys, Queue, State
from taskbridge.store import Claim, Cursors, Pauses, record_invoice
from tests.cli.counts import events
from tests.cli.held import hold_back
from tests.cli.program import Program
from tests.cli.test_bad_input import assert_one_clear_line
from tests.quarantined import put_in_quarantine
from tests.waiting import wait_until

TOKEN = "0000000000000001-aaaaaaaaaaaa"


@pytest.fixture
def invoices(taskbridge: Program, engine: Engine) -> Program:
    """Servers with two invoices of France and one of Malta, all pending, none notified."""
    for tenant, number in (("France", "1"), ("France", "2"), ("Malta", "1")):
        record_invoice(engine, tenant, number, {})
    return taskbridge


@pytest.fixture
def other(engine: Engine) -> Iterator[Connection]:
    """A second session, whose transaction the test ends itself."""
    with engine.connect() as connection:
        yield connection


def handle(engine: Engine, tenant: str) -> None:
    """Do to the tenant's records what a run does."""
    cursors, key = Cursors(engine), RunKey("invoices", tenant, TOKEN)
    page = cursors.claim(Claim(key, 100, events=1, runs=1))
    with cursors.transaction(key) as transaction:
        transaction.advance(transaction.move(page))


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


def test_a_tenant_is_paused_and_resumed_once(invoices: Program, engine: Engine) -> None:
    first = invoices("pause", "France", "--reason", "wrong prices", "--json").json
    who = pwd.getpwuid(os.getuid()).pw_name
    assert (first["new"], first["reason"], first["paused_by"]) == (True, "wrong prices", who)
    assert invoices("pause", "France", "--json").json == first | {"new": False}
    assert paused(engine) == {"France"}
    resumed = invoices("resume", "France", "--json").json
    assert resumed == {"pipeline": "invoices", "tenant": "France", "paused": False, "resumed": True, "started": 1}
    assert invoices("resume", "France", "--json").json["resumed"] is False
    assert paused(engine) == set()


def test_resume_starts_what_is_pending_and_nobody_else(
    invoices: Program, engine: Engine, gate_redis: redis.Redis, keys: Keys
) -> None:
    handle(engine, "Malta")
    invoices("pause")
    assert gate_redis.dbsize() == 0
    assert invoices("resume", "--json").json["started"] == 1
    assert events(gate_redis, keys.prefix) == 1
    assert gate_redis.llen(keys.queue(Queue.FIRST)) == 1


def test_a_pipeline_and_its_tenants_are_resumed_apart(
    invoices: Program, engine: Engine, gate_redis: redis.Redis, keys: Keys
) -> None:
    invoices("pause")
    invoices("pause", "France")
    of_tenant = invoices("resume", "France")
    assert "invoices itself is still paused: resume it with `taskbridge resume --pipeline invoices`" in of_tenant.stderr
    # A worker of another test may still write keys of its own while it ends.
    assert list(gate_redis.scan_iter(f"*{keys.prefix}*")) == []
    invoices("pause", "France")
    of_pipeline = invoices("resume", "--json")
    assert of_pipeline.json == {"pipeline": "invoices", "tenant": None, "paused": False, "resumed": True, "started": 1}
    assert "1 tenant is still paused" in of_pipeline.stderr
    assert gate_redis.llen(keys.queue(Queue.FIRST)) == 1
    assert paused(engine) == {"France"}


def test_a_tenant_that_is_held_runs_at_once_when_it_is_resumed(
    invoices: Program, gate_redis: redis.Redis, keys: Keys
) -> None:
    gate = hold_back(gate_redis, keys, "France")
    invoices("pause", "France")
    assert invoices("resume", "France").status == 0
    assert gate.look("invoices", ["France"])[0].state is State.QUEUED
    assert gate_redis.llen(keys.queue(Queue.NEXT)) == 1


@pytest.mark.parametrize("resume", [("resume", "France"), ("resume",)])
def test_a_tenant_that_a_pause_holds_is_released_though_nothing_of_it_is_pending(
    taskbridge: Program, gate_redis: redis.Redis, keys: Keys, resume: tuple[str, ...]
) -> None:
    taskbridge("pause", *resume[1:])
    gate = hold_back(gate_redis, keys, "France", paused=True)
    assert gate.paused("invoices") == ["France"]
    assert taskbridge(*resume).status == 0
    assert gate.paused("invoices") == []
    assert gate.look("invoices", ["France"])[0].state is State.QUEUED


def test_what_was_resumed_while_redis_is_away_is_said_to_be_kept(
    invoices: Program, engine: Engine, refusable: str, gate_redis: redis.Redis
) -> None:
    invoices("pause")
    gate_redis.acl_setuser("importer", enabled=True, categories=["-@scripting"])
    ended = invoices("resume", TASKBRIDGE_REDIS_URL=refusable)
    assert_one_clear_line(ended, "Redis refuses", "The change has been saved", status=1)
    assert paused(engine) == set()


def test_drain_pauses_when_all_is_handled_or_quarantined(invoices: Program, engine: Engine) -> None:
    handle(engine, "France")
    put_in_quarantine(engine, "France", "1")
    ended = invoices("drain", "France", "--reason", "a new version", "--json")
    assert ended.status == 0
    assert ended.json | {"drained": True, "paused": True, "left": {}, "reason": "a new version"} == ended.json
    assert paused(engine) == {"France"}
    assert invoices("drain", "France").stdout == "tenant 'France' of invoices: drained and paused\n"


def test_drain_waits_for_what_was_committed_before_it_and_for_nothing_else(
    invoices: Program, engine: Engine, other: Connection
) -> None:
    record_invoice(engine, "France", "uncommitted", {}, other)
    with invoices.started("drain", "--json") as running:
        wait_until(lambda: "waiting for 3 pending records" in running.stderr, "drain waits")
        handle(engine, "France")
        other.commit()
        record_invoice(engine, "France", "later", {})
        record_invoice(engine, "Malta", "later", {})
        assert paused(engine) == set()
        for _ in range(2):
            wait_until_it_looks(engine)
        assert running.process.poll() is None
        handle(engine, "Malta")
        ended = running.end()
    assert ended.status == 0, ended.stderr
    assert ended.json["drained"] is True
    assert paused(engine) == {"*"}


def test_drain_that_is_not_done_in_time_says_what_is_left_and_pauses_nothing(invoices: Program, engine: Engine) -> None:
    ended = invoices("drain", "--timeout", "1.5", "--json")
    assert ended.status == 1
    waiting, *each, last = ended.stderr.splitlines()
    assert waiting == "invoices: waiting for 3 pending records"
    assert each == ["France: 2 records are left", "Malta: 1 record is left"]
    assert last.startswith("taskbridge: invoices: not drained and not paused, 3 records are pending: ")
    assert "--timeout" in last
    left = {"France": 2, "Malta": 1}
    assert ended.json | {"drained": False, "paused": False, "left": left, "tenant": None} == ended.json
    assert ended.json["seconds"] >= 1.5
    assert paused(engine) == set()


def test_drain_does_not_wait_for_what_is_paused(invoices: Program, engine: Engine) -> None:
    handle(engine, "Malta")
    invoices("pause", "France")
    for tenant in ((), ("France",)):
        ended = invoices("drain", *tenant)
        assert ended.status == 1
        assert "use `taskbridge resume` first" in ended.stderr
    assert paused(engine) == {"France"}
    invoices("resume", "France")
    handle(engine, "France")
    invoices("pause", "France")
    assert invoices("drain").status == 0
    assert paused(engine) == {"*", "France"}


def test_drain_that_is_interrupted_pauses_nothing(invoices: Program, engine: Engine) -> None:
    with invoices.started("drain") as running:
        wait_until(lambda: "waiting for 3 pending records" in running.stderr, "drain waits")
        running.process.terminate()
        ended = running.end()
    assert ended.status == 128 + 15
    assert ended.stderr.splitlines()[1:] == ["taskbridge: interrupted"]
    assert paused(engine) == set()
