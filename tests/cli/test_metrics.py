"""`taskbridge metrics` prints what there is in Prometheus's format, and says which server it did not reach."""

from __future__ import annotations

import math

import pytest
import redis
from sqlalchemy import Engine

from taskbridge.gate import Blame, Keys
from taskbridge.observe.metrics import METRICS
from taskbridge.store import record_invoice
from tests.cli.counts import stood
from tests.cli.held import hold_back
from tests.cli.program import Program
from tests.quarantined import put_in_quarantine
from tests.scraping import SAMPLES, samples

OF_WORKERS = {one.name for one in METRICS if one.group.source == "its ticker"}

NOT_KNOWN = {"taskbridge_pending_records", "taskbridge_oldest_pending_seconds"}
"""What nobody knows where no worker looks for records and no tenant with some has a runner."""


def names(found: dict[str, float]) -> set[str]:
    return {name.partition(" ")[0] for name in found}


def test_everything_is_there_from_the_beginning(taskbridge: Program) -> None:
    ended = taskbridge("metrics")
    assert (ended.status, ended.stderr) == (0, "")
    found = samples(ended.stdout)
    expected = {name for name in SAMPLES if not name.startswith(tuple(OF_WORKERS))}
    assert names(found) == expected - NOT_KNOWN, "no worker has ever polled"
    assert {name for name, value in found.items() if value == 1} == {"taskbridge_up redis", "taskbridge_up postgres"}
    never = {"taskbridge_tail_age_seconds", "taskbridge_base_age_seconds"}
    assert {name for name, value in found.items() if value == math.inf} == never
    assert sum(value for name, value in found.items() if name not in never) == 2


def test_what_waits_is_counted_and_no_tenant_is_named(
    taskbridge: Program, engine: Engine, gate_redis: redis.Redis, keys: Keys
) -> None:
    stood(engine, "tail", 100)
    # given four records in quarantine: one as it was, one discarded, one to be tried again, one that changed since
    for number in ("1", "2", "3", "4"):
        record_invoice(engine, "France", number, {})
        put_in_quarantine(engine, "France", number)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE taskbridge.quarantine SET discarded_at = now() WHERE external_id = '2'")
        connection.exec_driver_sql("UPDATE taskbridge.quarantine SET retry_at = now() WHERE external_id = '3'")
    record_invoice(engine, "France", "4", {"changed": True})
    # and a circuit that two tenants have opened
    for tenant in ("Malta", "Spain"):
        hold_back(gate_redis, keys, tenant, blame=Blame.PIPELINE)
    record_invoice(engine, "Malta", "5", {})
    ended = taskbridge("metrics")
    found = samples(ended.stdout)
    assert found["taskbridge_quarantined_records"] == 1
    assert found["taskbridge_tail_age_seconds"] == pytest.approx(100, abs=30)
    assert not any(tenant in ended.stdout for tenant in ("France", "Malta", "Spain"))
    assert (found["taskbridge_circuit_open"], found["taskbridge_circuit_opened_total"]) == (1, 1)
    assert found["taskbridge_tenants_in_line"] == 1


@pytest.mark.parametrize(
    ("variable", "url", "away", "lost", "kept"),
    [
        ("TASKBRIDGE_REDIS_URL", "redis://:secret@127.0.0.1:1/0", "redis", "pending_records", "events_total"),
        ("TASKBRIDGE_POSTGRES_URL", "postgresql://u:secret@127.0.0.1:1/d", "postgres", "events_total", "runners"),
    ],
)
def test_a_server_that_is_away_costs_its_metrics_and_the_status(
    taskbridge: Program, variable: str, url: str, away: str, lost: str, kept: str
) -> None:
    ended = taskbridge("metrics", **{variable: url})
    found = samples(ended.stdout)
    assert ended.status == 1
    assert ended.stderr == (
        f"taskbridge: {away.capitalize()} cannot be reached (127.0.0.1:1): start it, or correct {variable} "
        "(`taskbridge doctor` checks it)\n"
    )
    assert {name for name, value in found.items() if name.startswith("taskbridge_up") and not value} == {
        f"taskbridge_up {away}"
    }
    assert f"taskbridge_{lost}" not in found
    assert f"taskbridge_{kept}" in found
