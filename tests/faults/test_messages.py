"""Messages of `record_event` carry data: each is in the table in the end, whatever failed when it was taken."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from taskbridge.declaring.pipeline import DECLARED
from taskbridge.embedded import Servers
from taskbridge.process.runtime import runtime_of
from taskbridge.store import connect, migrate
from taskbridge.testing.servers import open_directory
from tests.deployment import Deployment
from tests.waiting import wait_until
from verification.torture.servers import PostgresHere

pytestmark = pytest.mark.e2e

PIPELINE = "log-alerts"
RECORD = "taskbridge.record_event"


def payload(number: int) -> dict[str, Any]:
    return {"level": "ERROR", "service": f"s-{number}"}


def send(deployment: Deployment, *messages: tuple[Any, ...], **options: Any) -> None:
    """Send messages as another program would: it knows the names of the task and of the queue."""
    with Celery(broker=deployment.settings.redis_url, set_as_current=False) as foreign:
        for message in messages:
            foreign.send_task(RECORD, message, queue="taskbridge.first", **options)


def stored(deployment: Deployment) -> dict[str, str | None]:
    """Return the tenant of each message that is stored."""
    return dict(map(tuple, deployment.rows("SELECT key, nullif(tenant, '') FROM taskbridge.records")))


def reasons(deployment: Deployment) -> dict[str, str]:
    return dict(map(tuple, deployment.rows("SELECT key, reason FROM taskbridge.records WHERE tenant = ''")))


@pytest.fixture
def postgres() -> Iterator[PostgresHere]:
    """A Postgres of the test's own, which may be struck down."""
    with open_directory() as directory:
        server = PostgresHere(directory)
        server.start()
        yield server
        server.close()


@pytest.fixture
def fragile(postgres: PostgresHere, servers: Servers, tmp_path: Path) -> Iterator[Deployment]:
    engine = connect(postgres.url)
    migrate(engine)
    deployment = Deployment(engine, servers.redis_url, tmp_path)
    yield deployment
    deployment.close()
    engine.dispose()


def test_messages_that_come_while_postgres_is_away_are_recorded_once_it_is_back(
    fragile: Deployment, postgres: PostgresHere
) -> None:
    wanted = {f"m-{number}": f"s-{number}" for number in range(40)}
    with fragile.worker() as worker:
        postgres.strike(signal.SIGQUIT)
        send(fragile, *((PIPELINE, payload(number), f"m-{number}") for number in range(40)))
        wait_until(lambda: worker.text().count("retry: Retry in") >= 40, "each was tried", 30)
        postgres.start()
        fragile.engine.dispose()
        wait_until(lambda: stored(fragile) == wanted, "stored", 60)
        wait_until(lambda: len(fragile.deliveries()) == 40, "delivered", 30)
        wait_until(lambda: not fragile.redis.hlen("unacked"), "acknowledged")
        # one line says why, however many messages wait
        assert worker.text().count("messages cannot be recorded yet and will be retried") <= 4


NEVER: list[tuple[tuple[Any, ...], str]] = [
    ((PIPELINE, {"level": "a\0b"}, "bad-0"), "NUL"),
    ((PIPELINE, {"level": float("nan")}, "bad-2"), "not JSON"),
    ((PIPELINE, payload(1), "m\n1"), "message id"),
    (("invoices", payload(1), "bad-3"), "has no criteria"),
    (("No Such\0Name", payload(1), "bad-4"), "the pipeline 'No Such"),
    (([PIPELINE], payload(1), "bad-6"), "the pipeline ['log-alerts'] is not allowed"),
    ((PIPELINE, payload(1), [PIPELINE]), "message id"),
    ((PIPELINE,), "the pipeline '' is not allowed"),
]


def test_messages_that_can_never_be_recorded_are_quarantined_and_an_unexpected_error_loses_none(
    deployment: Deployment,
) -> None:
    with deployment.worker() as worker:
        send(deployment, *(message for message, _ in NEVER))
        wait_until(lambda: len(reasons(deployment)) == len(NEVER), "stored as unmatched")
        found = reasons(deployment)
        for _, text in NEVER:
            # each by a message of its own
            found.pop(next((one for one, reason in found.items() if text in reason), f"none says {text!r}"))
        deployment.execute("ALTER TABLE taskbridge.records ADD CONSTRAINT broken CHECK (key <> 'm-1')")
        send(deployment, *((PIPELINE, payload(number) | {"note": "secret"}, f"m-{number}") for number in range(4)))
        wait_until(lambda: len(stored(deployment)) == len(NEVER) + 3, "the others are stored")
        wait_until(lambda: worker.text().count("retry: Retry in") >= 3, "tried again", 30)
        deployment.save("acme", "1")
        wait_until(lambda: ("acme", "1") in deployment.deliveries(), "an invoice is delivered meanwhile")
        deployment.execute("ALTER TABLE taskbridge.records DROP CONSTRAINT broken")
        wait_until(lambda: len(stored(deployment)) == len(NEVER) + 5, "stored", 40)
        # Postgres quotes the whole row in the error's details
        assert "violates check constraint" in worker.text()
        assert "secret" not in worker.text()


def test_messages_for_a_pipeline_of_the_next_deployment_are_recorded_by_it(deployment: Deployment) -> None:
    # given a worker from before the deployment takes them
    with deployment.worker(TASKBRIDGE_PIPELINES="") as before:
        send(deployment, *((PIPELINE, payload(number), f"m-{number}") for number in range(5)))
        wait_until(lambda: before.text().count("retry: Retry in") >= 5, "each was tried")
        assert f"no pipeline is called '{PIPELINE}'" in before.text()
    assert not stored(deployment)
    # when one from after it starts
    with deployment.worker():
        wait_until(lambda: len(deployment.deliveries()) == 5, "delivered", 30)
    assert stored(deployment) == {f"m-{number}": f"s-{number}" for number in range(5)}


def test_a_message_whose_retry_the_broker_refuses_is_not_dropped(deployment: Deployment) -> None:
    deployment.execute("ALTER TABLE taskbridge.records ADD CONSTRAINT broken CHECK (key <> 'm-1')")
    with deployment.worker() as worker, deployment.engine.connect() as locker:
        locker.exec_driver_sql("LOCK TABLE taskbridge.records IN ACCESS EXCLUSIVE MODE")
        send(deployment, (PIPELINE, payload(1), "m-1"))
        wait_until(lambda: deployment.redis.hlen("unacked") == 1, "in hand")
        try:
            deployment.redis.config_set("maxmemory", 1)
            locker.rollback()
            wait_until(lambda: "nor republished" in worker.text(), "refused", 30)
        finally:
            deployment.redis.config_set("maxmemory", 0)
        deployment.execute("ALTER TABLE taskbridge.records DROP CONSTRAINT broken")
        wait_until(lambda: len(stored(deployment)) == 1, "stored", 30)


def test_a_worker_that_is_killed_with_a_message_in_hand_loses_none(deployment: Deployment) -> None:
    options: dict[str, Any] = {"CELERY_CONFIG_MODULE": "tests.host.careless_settings"}
    with deployment.worker(**options) as worker, deployment.engine.connect() as locker:
        locker.exec_driver_sql("LOCK TABLE taskbridge.records IN ACCESS EXCLUSIVE MODE")
        send(deployment, (PIPELINE, payload(1), "m-1"), (PIPELINE, payload(2), "m-2"))
        waiting = "SELECT FROM pg_locks WHERE NOT granted"
        wait_until(lambda: len(deployment.rows(waiting)) == 2, "both are in hand")
        assert deployment.redis.hlen("unacked") == 2
        worker.kill()
    with deployment.worker(**options):
        wait_until(lambda: len(stored(deployment)) == 2, "given again", 40)


@pytest.mark.parametrize(
    ("state", "becomes_unmatched"), [("54001", True), ("22000", True), ("57014", False), ("42501", False)]
)
def test_what_one_message_is_refused_for_says_nothing_about_the_others(
    deployment: Deployment, state: str, becomes_unmatched: bool
) -> None:
    DECLARED.load(["tests.pipelines_with_criteria"])
    runtime, app = runtime_of(deployment.app), deployment.app
    runtime.pipelines = DECLARED
    deployment.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"IF NEW.document ? 'bad' THEN RAISE EXCEPTION 'refused' USING ERRCODE = '{state}'; END IF; "
        "RETURN NEW; END $$"
    )
    deployment.execute(
        "CREATE TRIGGER refuse BEFORE INSERT ON taskbridge.records FOR EACH ROW EXECUTE FUNCTION refuse()"
    )
    task = app.tasks["taskbridge.record_event"]
    payloads: list[dict[str, Any]] = [{"good": 0}, {"bad": 1}, {"good": 2}]
    failed = [
        task.apply(("alerts-of-services", payload, f"message-{number}")).failed()
        for number, payload in enumerate(payloads)
    ]
    assert failed == [False, not becomes_unmatched, False]
    ((good, quarantined),) = deployment.rows(
        "SELECT count(*) FILTER (WHERE document ? 'good'), count(*) FILTER (WHERE document ? 'unstorable') "
        "FROM taskbridge.records"
    )
    assert (good, quarantined) == (2, int(becomes_unmatched))
