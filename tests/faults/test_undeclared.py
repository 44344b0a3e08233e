"""Many messages that came before their pipeline was known: matched soon, in slices, by one slot at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from taskbridge.declaring.pipeline import DECLARED, Pipelines
from taskbridge.integration.app import make_app
from taskbridge.process.runtime import runtime_of
from taskbridge.producing import intake, parking
from taskbridge.producing.intake import UNDECLARED
from taskbridge.store import connect, matching_alone
from tests.deployment import Deployment
from tests.transactions.black_hole import BlackHole
from tests.waiting import wait_until

PIPELINE = "alerts-of-services"


def undeclared(deployment: Deployment, count: int) -> None:
    """Store messages as a worker does that does not know the pipeline."""
    with deployment.engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO taskbridge.records (source, key, document, reason) "
            """SELECT %s, n, '{"level": "ERROR", "service": "s-1"}', %s FROM generate_series(1, %s) AS n""",
            (PIPELINE, UNDECLARED, count),
        )


def left(deployment: Deployment) -> int:
    ((count,),) = deployment.rows("SELECT count(*) FROM taskbridge.records WHERE tenant = ''")
    return int(count)


@pytest.fixture
def known(deployment: Deployment) -> Deployment:
    """A process that knows the pipeline."""
    DECLARED.load(["tests.pipelines_with_criteria"])
    runtime_of(deployment.app).pipelines = DECLARED
    return deployment


def test_a_slot_matches_them_for_no_longer_than_a_slice(known: Deployment) -> None:
    undeclared(known, 5_000)
    intake.again(known.app)
    assert 0 < left(known) < 5_000


@contextmanager
def at_work(deployment: Deployment) -> Iterator[None]:
    """Another slot matches them."""
    with matching_alone(deployment.engine) as alone:
        assert alone
        yield


def test_no_two_slots_match_them_at_once(known: Deployment) -> None:
    undeclared(known, 5)
    with at_work(known):
        intake.again(known.app)
        assert left(known) == 5
    for _ in range(5):  # one each time at the least
        intake.again(known.app)
    assert left(known) == 0


@pytest.mark.slow
def test_a_worker_goes_on_with_them_without_a_rest(deployment: Deployment) -> None:
    undeclared(deployment, 1_000)
    with deployment.worker(TASKBRIDGE_PIPELINES="tests.pipelines_with_criteria"):
        wait_until(lambda: left(deployment) == 0, "matched", 60)


def test_what_keeps_them_from_being_matched_keeps_no_parked_message_waiting(known: Deployment) -> None:
    undeclared(known, 1)
    with known.engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'refused'; END $$"
        )
        connection.exec_driver_sql(
            "CREATE TRIGGER refuse BEFORE UPDATE ON taskbridge.records FOR EACH ROW EXECUTE FUNCTION refuse()"
        )
    parking.park(known.app, (PIPELINE, {"level": "ERROR", "service": "s-2"}), {}, "parked", 1, "a moment ago")
    intake.again(known.app)
    assert known.rows("SELECT key FROM taskbridge.records WHERE tenant = 's-2'") == [("parked",)]


def test_a_broker_that_answers_slowly_keeps_no_parked_message_waiting(known: Deployment) -> None:
    # Each answer takes longer than the time for which parked messages are tried.
    slow = BlackHole(known.settings.broker_url or known.settings.redis_url, answers_after=intake.SLICE)
    app = make_app(replace(known.settings, broker_url=slow.url)).app
    runtime_of(app).pipelines = DECLARED
    parking.park(app, (PIPELINE, {"level": "ERROR", "service": "s-2"}), {}, "parked", 1, "a moment ago")
    intake.again(app)
    assert known.rows("SELECT key FROM taskbridge.records WHERE tenant = 's-2'") == [("parked",)]
    slow.close()


def test_an_outage_is_no_try_that_did_not_come_to_an_end(
    deployment: Deployment, caplog: pytest.LogCaptureFixture
) -> None:
    app, runtime = deployment.app, runtime_of(deployment.app)
    runtime.pipelines = Pipelines()
    parking.park(app, (PIPELINE, {}), {}, "message-1", 1, "a moment ago")
    before, away = runtime.engine, connect("postgresql://127.0.0.1:1/nowhere")
    runtime.engine = away
    intake.again(app)
    runtime.engine = before
    intake.again(app)
    assert "did not come to an end" not in caplog.text
    assert "Postgres cannot be reached" in caplog.text
    assert deployment.rows("SELECT key FROM taskbridge.records") == [("message-1",)]
