"""The rights that the page on security grants are enough for an event and its runs, and are no more than that."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis
from sqlalchemy import Engine, make_url
from sqlalchemy.exc import ProgrammingError

from taskbridge.declaring.pipeline import Pipeline, Pipelines
from taskbridge.gate import Answer, Reminder
from taskbridge.gate.scripts import SCRIPTS, read, render
from taskbridge.handlers.journal import JOURNAL, journal
from taskbridge.integration.app import make_app
from taskbridge.process.runtime import runtime_of
from taskbridge.producer.notify import notify_many
from taskbridge.producer.producer import Bridge
from taskbridge.producer.recording import record_event
from taskbridge.store import Incoming, connect, execute, forget_received, receive_statement, record_invoice
from tests.deployment import Deployment
from tests.pipelines_with_criteria import ALERTS
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e
PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "secure.md"
PASSWORD = "change-me"
QUICK_TIMERS = '{"health_check_interval": 1, "unacked_restore_interval": 1, "unacked_restore_throttle": 1}'
PAST_TIMERS = 4.0
"""Seconds after which gossip, heartbeats and whatever else Celery does now and then were done at least once."""


@dataclass
class Rights:
    """A deployment, and what the page's users and roles are called here."""

    deployment: Deployment
    suffix: str

    def url(self, server: str, who: str) -> str:
        """The URL of a server for a user or role of the page."""
        name = f"{who}_{self.suffix}"
        return make_url(server).set(username=name, password=PASSWORD).render_as_string(hide_password=False)

    def redis_url(self, who: str) -> str:
        return self.url(self.deployment.settings.redis_url, who)

    def postgres_url(self, who: str) -> str:
        return self.url(self.deployment.settings.postgres_url, f"taskbridge_{who}")

    def refused(self) -> list[str]:
        """What Redis refused to the page's users, but for the name that redis-py gives to its connections."""
        entries: Any = self.deployment.redis.acl_log()
        ours = [one for one in entries if self.suffix in one["username"] and one["object"] != "client"]
        return [f"{one['username']}: {one['reason']} {one['object']}" for one in ours]


def shown(mark: str) -> str:
    """The block of the page after a mark."""
    found = re.search(rf"<!-- {mark} -->\n```\w+\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture
def rights(deployment: Deployment) -> Iterator[Rights]:
    """The users and roles of the page, under names of the test's own."""
    made = Rights(deployment, secrets.token_hex(4))
    grants = shown("sql")
    roles = sorted(set(re.findall(r"taskbridge_(?:producer|worker|reader)", grants)))
    users = []
    deployment.redis.acl_log_reset()
    database = make_url(deployment.settings.redis_url).database
    for line in shown("redis").splitlines():
        command = line.replace("&/0.", f"&/{database}.").split()
        command[2] += f"_{made.suffix}"
        users.append(command[2])
        admin: Any = deployment.redis
        admin.execute_command(*command)
    with deployment.engine.begin() as connection:
        for role in roles:
            connection.exec_driver_sql(f"CREATE ROLE {role}_{made.suffix} LOGIN PASSWORD '{PASSWORD}'")
            grants = grants.replace(role, f"{role}_{made.suffix}")
        connection.exec_driver_sql(grants)
    yield made
    deployment.redis.acl_deluser(*users)
    with deployment.engine.begin() as connection:
        for role in roles:
            connection.exec_driver_sql(f"DROP OWNED BY {role}_{made.suffix}; DROP ROLE {role}_{made.suffix}")


@pytest.fixture
def reader(rights: Rights) -> Iterator[Engine]:
    engine = connect(rights.postgres_url("reader"))
    yield engine
    engine.dispose()


@pytest.fixture
def producer(rights: Rights) -> Iterator[Any]:
    """An app whose process has a producer's rights."""
    settings = replace(
        rights.deployment.settings, redis_url=rights.redis_url("producer"), postgres_url=rights.postgres_url("producer")
    )
    app = make_app(settings).app
    runtime = runtime_of(app, settings)
    pipelines = Pipelines().beside(JOURNAL)
    pipelines.declare(Pipeline("alerts-of-services", journal, ALERTS, 500))
    runtime.pipelines = pipelines
    yield app
    runtime.close()
    app.close()


def test_a_producer_that_cannot_tell_whose_the_gate_is_records_all_the_same(rights: Rights, producer: Any) -> None:
    runtime_of(rights.deployment.app).own_gate()
    rights.deployment.execute("REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC")
    with pytest.raises(psycopg.Error):
        _ = runtime_of(producer).deployment
    assert Bridge(producer, producer.tasks["taskbridge.notify_event"]).record("acme", "1", {}, source="invoices")
    assert rights.deployment.rows("SELECT tenant, key FROM taskbridge.records") == [("acme", "1")]


def watch_as_flower(rights: Rights) -> None:
    """Ask the workers and take an event of them, with the rights of Flower."""
    app = make_app(replace(rights.deployment.settings, redis_url=rights.redis_url("flower"))).app
    seen: list[Any] = []
    with app.connection_for_read() as connection:
        assert app.control.ping(timeout=20, limit=1)

        def see(event: Any) -> None:
            seen.append(event)
            receiver.should_stop = True

        receiver = app.events.Receiver(connection, handlers={"*": see})
        receiver.capture(limit=None, timeout=20, wakeup=True)
    app.close()
    assert seen


def test_the_rights_of_the_page_are_enough(rights: Rights, producer: Any, reader: Engine) -> None:
    runtime, notify = runtime_of(producer), producer.tasks["taskbridge.notify_event"]
    # Gossip, and what Celery does now and then, must be allowed too.
    with rights.deployment.worker(
        greets=True,
        app="tests.host.options",
        TEST_BROKER_OPTIONS=QUICK_TIMERS,
        TASKBRIDGE_REDIS_URL=rights.redis_url("worker"),
        TASKBRIDGE_POSTGRES_URL=rights.postgres_url("worker"),
        TASKBRIDGE_PIPELINES="tests.pipelines_of_rights",
    ) as worker:
        for number in ("1", "2", "1"):
            record_invoice(runtime.engine, "acme", number, {"number": secrets.token_hex(4)})
            notify.delay("acme")
        record_event(producer, "alerts-of-services", {"level": "ERROR", "service": "billing"})
        notify.delay("billing", "alerts-of-services")
        wait_until(lambda: len(rights.deployment.deliveries()) >= 3, "three deliveries")
        rights.deployment.wait_until_idle()
        for version in (1, 2):
            webhook = Incoming("invoices", f"d{version}", "acme", "3", Decimal(version), f'{{"number": {version}}}')
            assert execute(runtime.engine, receive_statement(webhook)) == [True]
        assert not forget_received(runtime.engine)
        notify.delay("acme")
        rights.deployment.wait_until_idle()
        assert "ERROR" not in worker.text()
        watch_as_flower(rights)
        time.sleep(PAST_TIMERS)
        assert worker.process.poll() is None
        # a failure, and the next success
        record_invoice(runtime.engine, "corp", "1", {"bad": True})
        notify.delay("corp")
        failed = "SELECT last_error FROM taskbridge.sync_cursors WHERE failures > 0"
        wait_until(lambda: rights.deployment.rows(failed) == [("ValueError: the price is missing",)], "it is noted")
        wait_until(
            lambda: rights.deployment.rows("SELECT 1 FROM taskbridge.runs WHERE outcome = 'failed'"), "its run is noted"
        )
        record_invoice(runtime.engine, "bolt", "1", {})
        notify.delay("bolt")
        unanswered = "SELECT 1 FROM taskbridge.pipelines WHERE pipeline = 'invoices' AND failed"
        wait_until(lambda: not rights.deployment.rows(unanswered), "the next success is noted")
        text = worker.text()
    assert rights.refused() == []
    assert "denied" not in text
    assert "NoPermission" not in text
    with reader.connect() as connection:
        states = connection.exec_driver_sql("SELECT DISTINCT state FROM taskbridge.record_states").scalars().all()
        assert connection.exec_driver_sql("SELECT count(*) FROM taskbridge.deliveries").scalar_one() >= 3
    assert "handled" in states


def test_a_producer_notifies_a_tenant_that_waits_for_its_turn(rights: Rights, producer: Any) -> None:
    gate = rights.deployment.gate
    gate.remind("invoices", [Reminder("found", 200, None)], by_reconciler=True)
    assert notify_many(producer, ["found", "other"]) == [Answer.STARTED] * 2
    assert rights.refused() == []


def does(name: str) -> set[str]:
    """The commands in the text of a script, and of the parts that it uses."""
    publishing = read("publish.lua")
    if "at_front" not in read(f"{name}.lua"):
        publishing = re.sub(r'.*"RPUSH".*', "", publishing)
    text = render(SCRIPTS[name], publishing)
    found = re.findall(r'redis\.p?call\("([A-Z]+)"', text)
    assert len(found) == len(re.findall(r"redis\.p?call", text)), "each command is written out"
    return {one.lower() for one in found}


def may(admin: Any, who: str) -> set[str]:
    """The commands that the page lets a user do."""
    (line,) = [line for line in shown("redis").splitlines() if line.split()[2] == who]
    granted = set[str]()
    for right in re.findall(r" \+(\S+)", line):
        granted |= set(admin.acl_cat(right[1:])) if right.startswith("@") else {right}
    return granted


def test_the_page_lets_a_producer_do_what_its_script_does_and_no_more(deployment: Deployment) -> None:
    connects = {"select", "ping", "evalsha", "script|load"}
    assert may(deployment.redis, "producer") == connects | does("notify")


def test_the_page_lets_a_worker_do_what_its_scripts_do(deployment: Deployment) -> None:
    allowed = may(deployment.redis, "worker")
    assert {name: left for name in SCRIPTS if (left := does(name) - allowed)} == {}


OF_REDIS = {
    "producer": ("FLUSHDB", "KEYS *", "GET another:key", "LPUSH another-queue x"),
    "flower": ("GET sync:x",),
    "worker": ("FLUSHALL", "KEYS *", "CONFIG GET *", "EVAL return 0", "GET another:key"),
}
OF_POSTGRES = {
    "producer": (
        "UPDATE taskbridge.sync_cursors SET runs = 0",
        "SELECT * FROM taskbridge.deliveries",
        "DELETE FROM taskbridge.records",
        "DELETE FROM taskbridge.record_versions",
        "SELECT taskbridge.keep_runs(0)",
    ),
    "worker": (
        "DELETE FROM taskbridge.received",
        "DELETE FROM taskbridge.records",
        "TRUNCATE taskbridge.deliveries",
        "DELETE FROM taskbridge.audit",
        "DROP TABLE taskbridge.pauses",
        "UPDATE taskbridge.taskbridge_cluster SET system_identifier = 1",
        "CREATE TABLE mine (id int)",
    ),
    "reader": ("SELECT * FROM taskbridge.records", "UPDATE taskbridge.quarantine SET reason = ''"),
}


def test_redis_and_postgres_refuse_what_nobody_needs(rights: Rights) -> None:
    errors = (redis.exceptions.NoPermissionError, redis.exceptions.ResponseError)
    for who, commands in OF_REDIS.items():
        with redis.Redis.from_url(rights.redis_url(who)) as client:
            for command in commands:
                with pytest.raises(errors, match=r"(?i)permission|NOPERM"):
                    client.execute_command(*command.split())
    for who, statements in OF_POSTGRES.items():
        engine = connect(rights.postgres_url(who))
        for statement in statements:
            refused = pytest.raises(ProgrammingError, match=r"permission denied|must be owner")
            with engine.connect() as connection, refused:
                connection.exec_driver_sql(statement)
        engine.dispose()
