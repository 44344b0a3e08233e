"""`taskbridge prune` says what it deletes, can be stopped, and takes no age that it could misread."""

from __future__ import annotations

import signal
import subprocess

import pytest
from sqlalchemy import Engine

from tests.cli.program import Program
from tests.cli.scenes import count
from tests.waiting import wait_until

NOTHING = {"records": 0, "quarantine": 0, "deliveries": 0, "kept": 0}


def write(engine: Engine, rows: int = 3, days: int = 31) -> None:
    """So many handled invoices of one tenant, each delivered once."""
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "WITH old AS (INSERT INTO taskbridge.records (source, tenant, key, document, changed_at) "
            "SELECT 'invoices', 'acme', %(days)s || '-' || n, '{}', now() - %(days)s * interval '1 day' "
            "FROM generate_series(1, %(rows)s) n RETURNING key, changed_at) "
            "INSERT INTO taskbridge.deliveries (pipeline, tenant, external_id, revision, token, delivered_at) "
            "SELECT 'invoices', 'acme', key, 1, 't', changed_at FROM old",
            {"rows": rows, "days": days},
        )
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO taskbridge.sync_cursors (pipeline, tenant, snapshot) VALUES ('invoices', 'acme', "
            "pg_current_snapshot()) "
            "ON CONFLICT (pipeline, tenant) DO UPDATE SET snapshot = pg_current_snapshot()"
        )


def test_what_is_old_goes_and_is_counted(taskbridge: Program, engine: Engine) -> None:
    write(engine, 3, days=31)
    write(engine, 2, days=29)
    old = ("prune", "--older-than", "30d", "--json")
    for options, found, left in (
        (("--deliveries", "--dry-run"), {"records": 3, "deliveries": 3, "dry_run": True}, (5, 5)),
        ((), {"records": 3, "dry_run": False}, (2, 5)),
        (("--deliveries",), {"deliveries": 3, "dry_run": False}, (2, 2)),
    ):
        assert taskbridge(*old, *options).json == NOTHING | {"complete": True} | found
        assert (count(engine), count(engine, "SELECT count(*) FROM taskbridge.deliveries")) == left


HELD = """
CREATE FUNCTION held() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(31);
    RETURN OLD;
END $$;
CREATE TRIGGER held BEFORE DELETE ON taskbridge.records FOR EACH ROW WHEN (OLD.key = '31-2500') EXECUTE FUNCTION held()
"""


def test_a_signal_ends_it_after_the_step_in_hand_and_what_is_done_is_counted(
    taskbridge: Program, engine: Engine
) -> None:
    # given that the fifth step of ten waits for somebody
    write(engine, 5_000)
    with engine.begin() as connection:
        connection.exec_driver_sql(HELD)
    with engine.connect() as other:
        other.exec_driver_sql("SELECT pg_advisory_xact_lock(31)")
        with taskbridge.started("prune", "--older-than", "1d", "--json") as running:
            wait_until(lambda: waits(engine), "prune waits for the lock")
            running.process.send_signal(signal.SIGINT)
            # then it is not cut off in that step
            with pytest.raises(subprocess.TimeoutExpired):
                running.process.wait(0.2)
            other.rollback()
            ended = running.end()
    assert ended.status == 130, ended.stderr
    assert ended.json == NOTHING | {"records": 2_000, "complete": False, "dry_run": False}
    assert count(engine) == 2_500
    assert "Run it again for the rest" in ended.stderr
    assert taskbridge("prune", "--older-than", "1d", "--json").json["records"] == 2_500


def waits(engine: Engine) -> bool:
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    return count(engine, waiting) > 0
