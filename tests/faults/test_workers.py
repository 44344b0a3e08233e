"""Workers that die, freeze or stop, or lose a server: the tenant goes on in time, and each record is delivered once."""

from __future__ import annotations

import os
import re
import secrets
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from celery.platforms import EX_FAILURE
from sqlalchemy import make_url

from taskbridge.gate import Keys, State
from taskbridge.integration.checks import Level, examine
from taskbridge.process.runtime import Runtime
from taskbridge.store import record_invoice
from tests.deployment import ENDS_WITHIN, Deployment
from tests.special_exceptions import LONG, SPECIAL
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

NUMBERS = [f"{number:03}" for number in range(20)]
RUNNER_TTL = 5.0


def delivered_once(deployment: Deployment, tenant: str = "acme") -> bool:
    return sorted(deployment.deliveries()) == [(tenant, number) for number in NUMBERS]


def test_kill_9_of_the_only_worker_in_mid_batch(deployment: Deployment) -> None:
    # given a worker in the middle of its second batch
    deployment.save("acme", *NUMBERS, notify=False)
    with deployment.worker(handler_seconds=0.4, batch_size=5) as first:
        deployment.notify_event.delay("acme")
        wait_until(lambda: len(deployment.delivered("acme")) == 2, "second batch delivered")
        first.kill()
    half = len(deployment.deliveries())
    assert 0 < half < len(NUMBERS)
    # when another is started
    with deployment.worker(batch_size=5):
        wait_until(lambda: len(deployment.deliveries()) > half, "the tenant goes on", 3 * RUNNER_TTL)
        deployment.wait_until_idle()
    # then the tenant goes on where it stood
    assert delivered_once(deployment)
    assert deployment.delivered("acme")[2] == NUMBERS[5:10], "the batch that was lost is delivered again"


def test_a_worker_that_was_frozen_past_its_deadline_changes_nothing(deployment: Deployment) -> None:
    # given a run that freezes in mid-batch
    with deployment.worker(handler_seconds=2.0) as frozen:
        deployment.save("acme", *NUMBERS)
        wait_until(lambda: deployment.delivered("acme"), "first batch delivered")
        frozen.signal_all(signal.SIGSTOP)
        # when another worker takes the tenant over and the first one wakes
        with deployment.worker():
            wait_until(lambda: len(deployment.deliveries()) == len(NUMBERS), "taken over", 3 * RUNNER_TTL)
            frozen.signal_all(signal.SIGCONT)
            wait_until(lambda: "replaced by another run" in frozen.text(), "the frozen run notices")
            deployment.wait_until_idle()
        # then nothing is delivered twice
        assert delivered_once(deployment)


def test_a_run_message_is_lost_or_doubled(deployment: Deployment) -> None:
    # given a message that vanishes from the broker, and one that comes three times
    deployment.save("lost", "1")
    assert deployment.redis.delete("taskbridge.first") == 1
    deployment.save("acme", *NUMBERS)
    (message,) = deployment.redis.lrange("taskbridge.first", 0, -1)
    deployment.redis.lpush("taskbridge.first", message, message)
    with deployment.worker(handler_seconds=0.3) as worker:
        wait_until(lambda: worker.text().count("late or doubled message") == 2, "both doubles refused")
        wait_until(lambda: ("lost", "1") in deployment.deliveries(), "published again", 3 * RUNNER_TTL)
        deployment.wait_until_idle()
    assert deployment.delivered("acme") == [NUMBERS]
    assert deployment.delivered("lost") == [["1"]]


def test_redis_is_lost_and_postgres_drops_every_connection_in_mid_burst(deployment: Deployment) -> None:
    with deployment.worker(handler_seconds=0.05):
        for at, number in enumerate(NUMBERS):
            deployment.save("acme", number)
            if at == len(NUMBERS) // 3:
                deployment.redis.flushdb()
                deployment.redis.script_flush()
            if at == 2 * len(NUMBERS) // 3:
                deployment.rows(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
        deployment.wait_until_idle(35)
    assert delivered_once(deployment)


@pytest.mark.parametrize("deployment", [{"runner_ttl": 1.0}], indirect=True)
def test_a_handler_longer_than_the_runner_ttl_keeps_its_tenant(deployment: Deployment) -> None:
    # The heartbeat moves the deadline on while the handler works. All is saved before a worker is there: its poller
    # would find what is saved so far.
    deployment.save("acme", *NUMBERS, notify=False)
    with deployment.worker(handler_seconds=2.5) as worker:
        deployment.notify_event.delay("acme")
        wait_until(lambda: delivered_once(deployment), "delivered")
        deployment.wait_until_idle()
        assert deployment.delivered("acme") == [NUMBERS]
        assert "replaced by another run" not in worker.text()


PIPELINES = "tests.pipelines_of_failures"


def save_failing(deployment: Deployment, *whats: str) -> None:
    """Commit for each of `whats` a tenant of this name with an invoice that does it, and one that is delivered."""
    for what in whats:
        record_invoice(deployment.engine, what, what, {"do": what})
        deployment.save(what, f"after {what}")


def quarantined(deployment: Deployment) -> dict[str, str]:
    return dict(map(tuple, deployment.rows("SELECT external_id, reason FROM taskbridge.quarantine")))


def delivered(deployment: Deployment) -> list[str]:
    return sorted(number for _, number in deployment.deliveries())


def test_no_exception_of_a_handler_is_special_to_celery_or_fills_the_log(deployment: Deployment) -> None:
    whats = [*SPECIAL]
    with deployment.worker(TASKBRIDGE_PIPELINES=PIPELINES) as worker:
        save_failing(deployment, *whats)
        wait_until(lambda: quarantined(deployment).keys() == {*whats}, "in quarantine", 60)
        wait_until(lambda: delivered(deployment) == sorted(f"after {what}" for what in whats), "the others go on")
        # A message's own run, or one that its slot took besides.
        failed = re.compile(r"run of (?:pipeline invoices, tenant|invoices for tenant) '([\w, ]+)',? failed")
        wait_until(lambda: {*failed.findall(worker.text())} >= {*whats}, "each failure is in the log")
        assert worker.process.poll() is None
        assert len(worker.text()) < LONG / 100
    for what, reason in quarantined(deployment).items():
        assert reason.startswith(f"{what.partition(',')[0]}: ")


@pytest.mark.parametrize("deployment", [{"runner_ttl": 1.0}], indirect=True)
def test_a_record_that_kills_its_process_goes_to_quarantine_and_the_rest_go_on(deployment: Deployment) -> None:
    with deployment.worker(TASKBRIDGE_PIPELINES=PIPELINES):
        save_failing(deployment, "kill")
        wait_until(lambda: quarantined(deployment), "in quarantine", 60)
        wait_until(lambda: delivered(deployment) == ["after kill"], "the others go on")
    assert quarantined(deployment)["kill"].startswith("the previous run did not end: its process died")


def wait_until_a_run_is_on(deployment: Deployment) -> None:
    wait_until(lambda: deployment.rows("SELECT FROM taskbridge.sync_cursors WHERE owner IS NOT NULL"), "a run is on")


def failed_runs(deployment: Deployment) -> list[int]:
    return [row[0] for row in deployment.rows("SELECT failed_runs FROM taskbridge.sync_cursors")]


@pytest.mark.parametrize("deployment", [{"runner_ttl": 1.0}], indirect=True)
def test_a_pool_process_that_alone_is_told_to_end_costs_one_attempt(deployment: Deployment) -> None:
    """As by a hard time limit, or by its handler: nobody told the worker to stop."""
    record_invoice(deployment.engine, "acme", "1", {"sleep": 2})
    with deployment.worker(TASKBRIDGE_PIPELINES=PIPELINES) as worker:
        deployment.notify_event.delay("acme")
        wait_until_a_run_is_on(deployment)
        pid = worker.process.pid
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            os.kill(int(child), signal.SIGTERM)
        deployment.wait_until_idle(30)
    assert deployment.deliveries() == [("acme", "1")]
    assert failed_runs(deployment) == [1]


def test_a_worker_that_is_told_to_stop_hands_its_batch_over_and_that_costs_no_attempt(deployment: Deployment) -> None:
    record_invoice(deployment.engine, "acme", "1", {"sleep": 5})
    with deployment.worker(TASKBRIDGE_PIPELINES=PIPELINES) as worker:
        deployment.notify_event.delay("acme")
        wait_until_a_run_is_on(deployment)
        worker.signal_all(signal.SIGTERM)
        worker.process.wait(timeout=ENDS_WITHIN)
    (status,) = deployment.gate.look("invoices", ["acme"])
    assert status.state is State.QUEUED
    assert failed_runs(deployment) == [0]
    assert deployment.redis.hget(Keys().runner("invoices", "acme"), "died") is None


@pytest.mark.parametrize("deployment", [{"run_budget": 60.0}], indirect=True)
def test_a_warm_shutdown_ends_the_batch_in_hand_and_hands_the_tenant_over(deployment: Deployment) -> None:
    # given a run that has time for all of its tenant's batches
    deployment.save("acme", *NUMBERS, notify=False)
    with deployment.worker(handler_seconds=0.5, batch_size=2) as stopping:
        deployment.notify_event.delay("acme")
        wait_until(lambda: len(deployment.delivered("acme")) == 2, "in the middle of its second batch")
        # when the worker is told to stop
        stopping.stop()
    # then each batch in hand took effect, and the next run is published. (Until Celery's loop has stopped, which takes
    # two seconds in some pools, the worker may still take the continuation and do a batch of it.)
    batches = len(deployment.delivered("acme"))
    assert 2 <= batches < len(NUMBERS) / 2
    assert len(deployment.deliveries()) == 2 * batches
    (status,) = deployment.gate.look("invoices", ["acme"])
    assert status.state is State.QUEUED
    with deployment.worker(batch_size=20):
        deployment.wait_until_idle()
    assert sorted(deployment.deliveries()) == [("acme", number) for number in NUMBERS]


def test_a_worker_that_cannot_read_its_processes_answers_ends_by_itself(deployment: Deployment) -> None:
    with deployment.worker("-c", "1", TASKBRIDGE_PIPELINES="tests.faults.garbled") as failing:
        deployment.save("acme", "1")
        wait_until(lambda: "Unrecoverable error" in failing.text(), "its main process fails")
        wait_until(lambda: failing.process.poll() is not None, "it ends")
        assert failing.process.poll() == EX_FAILURE


SLOTS = 6
SESSIONS = 4
TENANTS = 12


@pytest.fixture
def few(deployment: Deployment) -> Iterator[str]:
    """The URL of a role that can have few sessions."""
    name, owner = f"few_{secrets.token_hex(4)}", deployment.engine.url.username
    committing = deployment.engine.execution_options(isolation_level="AUTOCOMMIT")
    with committing.connect() as connection:
        connection.exec_driver_sql(f"CREATE ROLE {name} LOGIN PASSWORD 'secret' CONNECTION LIMIT {SESSIONS}")
        connection.exec_driver_sql(f"GRANT {owner} TO {name}")
    url = make_url(deployment.settings.postgres_url).set(username=name, password="secret")
    yield url.render_as_string(hide_password=False)
    with committing.connect() as connection:
        connection.exec_driver_sql(f"DROP ROLE {name}")


def test_slots_without_a_session_leave_their_runs_to_others(deployment: Deployment, few: str) -> None:
    with deployment.worker("-c", str(SLOTS), TASKBRIDGE_POSTGRES_URL=few, TASKBRIDGE_PIPELINES="") as worker:
        for number in range(2):
            for tenant in range(TENANTS):
                deployment.save(f"t{tenant}", str(number))
        deployment.wait_until_idle(60)
        assert "raised unexpected" not in worker.text()

        with deployment.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql(f"ALTER DATABASE {deployment.engine.url.database} CONNECTION LIMIT 9")
        looking = Runtime(deployment.settings, deployment.app)
        (found,) = [one for one in examine(looking) if one.check == "sessions"]
        assert found.level is Level.WARNING
        assert found.text.startswith("1 worker may need 10 Postgres sessions at once, and the CONNECTION LIMIT of")
        assert found.text.endswith("the database allows 9 for all clients")
        looking.close_sessions()
    assert not deployment.rows("SELECT FROM taskbridge.sync_cursors WHERE failures > 0 OR last_error IS NOT NULL")
    assert len(deployment.deliveries()) == 2 * TENANTS
