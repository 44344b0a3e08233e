"""`taskbridge prune` says what it deletes, can be stopped, and takes no age that it could misread."""

from __future__ import annotations

import signal
import subprocess
from datetime import UTC, datetime

import pytest
from sqlalchemy import Engine

from tests.cli.counts import count
from tests.cli.program import Program
from tests.cli.test_bad_input import assert_one_clear_line
from tests.quarantined import put_in_quarantine
from tests.store.adopting import run
from tests.waiting import wait_until

NOTHING = {"records": 0, "quarantine": 0, "deliveries": 0, "kept": 0, "held_by": []}


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
    dry = taskbridge("prune", "--older-than", "30d", "--deliveries", "--dry-run", "--json")
    assert dry.status == 0, dry.stderr
    expected = NOTHING | {"records": 3, "deliveries": 3, "complete": True}
    assert dry.json == expected | {"dry_run": True}
    assert (count(engine), count(engine, "SELECT count(*) FROM taskbridge.deliveries")) == (5, 5)
    without = taskbridge("prune", "--older-than", "30d", "--json").json
    assert without == NOTHING | {"records": 3, "complete": True, "dry_run": False}
    assert (count(engine), count(engine, "SELECT count(*) FROM taskbridge.deliveries")) == (2, 5)
    again = taskbridge("prune", "--older-than", "30d", "--deliveries", "--json").json
    assert again == NOTHING | {"deliveries": 3, "complete": True, "dry_run": False}
    assert taskbridge("prune", "--older-than", "4w", "--json").json["records"] == 2


def write_pending(engine: Engine, tenant: str, rows: int, source: str = "invoices") -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO taskbridge.records (source, tenant, key, document, changed_at) "
            "SELECT %s, %s, n, '{}', now() - interval '31 days' FROM generate_series(1, %s) n",
            (source, tenant, rows),
        )


def test_who_holds_records_back_is_named(taskbridge: Program, engine: Engine) -> None:
    # given records that are done in one pipeline and in every other state there, and two more readers
    assert taskbridge("status").status == 0
    write(engine, 3)
    put_in_quarantine(engine, "acme", "31-1")
    put_in_quarantine(engine, "acme", "31-2", retry_at=datetime.now(UTC))
    put_in_quarantine(engine, "acme", "31-3", discarded_at=datetime.now(UTC))
    write_pending(engine, "a\u202eb", 1_100)
    write_pending(engine, "bolt", 3, "nobodys")
    write_pending(engine, "bolt", 2, "typo")
    # when some of them are pruned, or would be
    for dry in (["--dry-run"], []):
        found = taskbridge("prune", "--older-than", "30d", "--json", *dry).json
        assert (found["records"], found["kept"]) == (1, 1_107)
        assert [tuple(one.values()) for one in found["held_by"]] == [
            ("invoices", "invoices", "pending", 1_100, "a\u202eb"),
            ("nobodys", None, "unread", 3, "bolt"),
            ("typo", None, "unread", 2, "bolt"),
            ("invoices", "invoices", "quarantined", 1, "acme"),
            ("invoices", "invoices", "retrying", 1, "acme"),
        ]
    # then people read it too, and which pipeline may be no more
    run(engine, "INSERT INTO taskbridge.pipelines (pipeline, source) VALUES ('gone', 'typo')")
    shown = taskbridge("prune", "--older-than", "30d").stdout.splitlines()
    assert "  invoices: 1,100 records, for example of 'a\\u202eb': pending" in shown
    assert "  nobodys: 3 records, for example of 'bolt': no pipeline reads this source" in shown
    assert shown[-1].startswith("gone is not declared here: ")


def test_an_age_that_could_be_misread_is_refused_before_anything_is_looked_at(bare: Program) -> None:
    expected = "is not a duration: use a number with s, m, h, d or w, such as 30d"
    for age in ("", "30", "d", "0d", "-1d", "1.5d", "30 d", "30D", "1y", "٣d", "36501d", "9" * 11 + "s"):
        assert_one_clear_line(bare("prune", f"--older-than={age}"), expected, status=2)
    assert not (bare.directory / ".taskbridge").exists()


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
