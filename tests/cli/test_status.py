"""`status`, `notify` and `env` say what is there, and `migrate` what it did."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any

import pytest
import redis
from sqlalchemy import Engine

from taskbridge.cli import tenants
from taskbridge.gate import Keys, Queue
from taskbridge.process.runtime import runtime_of
from taskbridge.store import Tenants
from tests.cli.counts import CLOSED, NO_WORKER, TOTALS
from tests.cli.files import line, write
from tests.cli.held import open_circuit
from tests.cli.program import Program
from tests.cli.test_bad_input import assert_one_clear_line
from tests.deployment import Deployment
from tests.quarantined import put_in_quarantine


def age(iso: str) -> float:
    return (datetime.now(UTC) - datetime.fromisoformat(iso)).total_seconds()


def test_a_tenant_that_was_notified_and_not_run_is_pending_with_its_lease(taskbridge: Program) -> None:
    file = write(taskbridge.directory / "invoices.csv", [line("1"), line("2"), line("3", "Malta")])
    assert taskbridge("import", file).status == 0
    one = taskbridge("status", "France", "--json").json["pipelines"]["invoices"]["tenants"]
    assert list(one) == ["France"]
    france = one["France"]
    assert 0 < france.pop("lease_seconds") <= 1.2
    assert age(france.pop("pending_since")) < 60
    assert france == {
        "state": "queued",
        "held": False,
        "paused": False,
        "pending": 2,
        "handled": 0,
        "quarantined": 0,
        "discarded": 0,
        "last_run_at": None,
        "burst_events": 2,
        "burst_runs": 0,
        "first_event_ms": None,
        "events": 0,
        "runs": 0,
        "sweeps": 0,
        "records": 0,
        "failures": 0,
        "last_error": None,
        "failing_since": None,
        "next_try_at": None,
        "held_cause": None,
        "held_because": None,
    }


def test_failures_are_shown_with_their_error(taskbridge: Program, engine: Engine) -> None:
    taskbridge("import", write(taskbridge.directory / "invoices.csv", [line("1")]))
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO taskbridge.sync_cursors (pipeline, tenant, failures, last_error, last_run_at) "
            "VALUES ('invoices', 'France', 3, E'ValueError: \\x1b[2Jno', now() - interval '3 hours')"
        )
    shown = taskbridge("status")
    assert "3h ago" in shown.stdout
    assert "France: failed 3 times in a row, last: ValueError: \\x1b[2Jno" in shown.stdout


FAIL = (
    "INSERT INTO taskbridge.sync_cursors (pipeline, tenant, failures, last_error, failing_since) "
    "SELECT 'invoices', {name} || n, n, {error}, now() - n * interval '1 hour' FROM generate_series(1, {count}) n"
)


def test_fifty_tenants_with_one_error_do_not_hide_the_others(taskbridge: Program, engine: Engine) -> None:
    with engine.begin() as connection:
        for name, error, count in (
            ("'t'", "E'Undelivered: 502\n\n  Bad Gateway'", 50),
            ("'two'", "'ValueError: x'", 2),
            ("'own'", "'KeyError: ' || n", 3),
        ):
            connection.exec_driver_sql(FAIL.format(name=name, error=error, count=count))
    lines = [line for line in taskbridge("status").stdout.splitlines() if "in a row" in line]
    alike = "50 tenants fail alike ('t1', 't10', 't11', ...)"
    assert lines == [
        f"invoices: {alike}, up to 50 times in a row, for 2d, last: Undelivered: 502 Bad Gateway",
        *(f"own{n}: failed {n} time{'s' * (n > 1)} in a row, for {n}h, last: KeyError: {n}" for n in (1, 2, 3)),
        *(f"two{n}: failed {n} time{'s' * (n > 1)} in a row, for {n}h, last: ValueError: x" for n in (1, 2)),
    ]


def test_lines_for_equal_errors_are_bounded(taskbridge: Program, engine: Engine) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql(FAIL.format(name="'t'", error="'ValueError: ' || mod(n, 25)", count=75))
    lines = [line for line in taskbridge("status").stdout.splitlines() if "fail" in line]
    assert len([line for line in lines if "3 tenants fail alike" in line]) == 20
    assert "invoices: 15 more tenants fail, with 5 other errors" in lines


def test_several_tenants_are_shown_and_each_unknown_one_is_named(taskbridge: Program) -> None:
    rows = [line("1"), line("2", "Malta"), line("3", "Spain")]
    taskbridge("import", write(taskbridge.directory / "invoices.csv", rows))
    ended = taskbridge("status", "Malta", "France", "Malta", "--json")
    assert (ended.status, [*ended.json["pipelines"]["invoices"]["tenants"]]) == (0, ["Malta", "France"])
    ended = taskbridge("status", "Malta", "Nobody", "Nothing")
    assert ended.status == 1
    assert "Malta" in ended.stdout
    assert [one.split("'")[1] for one in ended.stderr.splitlines()] == ["Nobody", "Nothing"]


def test_a_tenant_that_nobody_knows_is_said_to_be_unknown(taskbridge: Program) -> None:
    for more in ((), ("--json",)):
        ended = taskbridge("status", "Nobody", *more)
        assert ended.status == 1
        assert "no tenant is called 'Nobody'" in ended.stderr


@pytest.fixture
def troubles(taskbridge: Program, engine: Engine) -> Program:
    """Tenants of which each but the first by name has the most of something."""
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO taskbridge.records (source, tenant, key, document, changed_at) "
            "SELECT 'invoices', tenant, n, '{}', now() - hours * interval '1 hour' FROM (VALUES ('calm', 1, 1), "
            "('failing', 2, 2), ('late', 1, 5), ('much', 4, 3), ('spoilt', 3, 4)) v (tenant, many, hours) "
            "CROSS JOIN generate_series(1, many) n"
        )
        connection.exec_driver_sql(
            "INSERT INTO taskbridge.sync_cursors (pipeline, tenant, failures) VALUES ('invoices', 'failing', 3), "
            "('invoices', 'late', 1)"
        )
    put_in_quarantine(engine, "spoilt", "1", "2", "3")
    return taskbridge


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("name", ["calm", "failing", "late", "much", "spoilt"]),
        ("age", ["late", "much", "failing", "calm", "spoilt"]),
        ("pending", ["much", "failing", "calm", "late", "spoilt"]),
        ("failures", ["failing", "late", "calm", "much", "spoilt"]),
        ("quarantine", ["spoilt", "calm", "failing", "late", "much"]),
    ],
)
def test_the_worst_come_first_if_asked_for(order: str, expected: list[str], troubles: Program) -> None:
    shown = troubles("status", "--sort", order)
    assert [row.split()[0] for row in shown.stdout.splitlines()[1:6]] == expected
    found = troubles("status", "--sort", order, "--limit", "2", "--json").json["pipelines"]["invoices"]
    assert list(found["tenants"]) == expected[:2]
    assert found["next"] == ("failing" if order == "name" else None)


def test_what_was_left_out_of_an_order_is_said(troubles: Program) -> None:
    assert "more tenants: --limit shows more" in troubles("status", "--sort", "age", "--limit", "4").stdout
    assert "more tenants" not in troubles("status", "--sort", "age", "--limit", "5").stdout
    assert_one_clear_line(troubles("status", "--sort", "age", "--after", "calm"), "--after goes on by name", status=2)


def test_a_tenant_in_trouble_is_not_overlooked_behind_many_by_name(troubles: Program, engine: Engine) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO taskbridge.sync_cursors (pipeline, tenant) "
            "SELECT 'invoices', 'a' || n FROM generate_series(1, 1200) n"
        )
    for order, first in (("failures", "failing"), ("quarantine", "spoilt")):
        found = troubles("status", "--sort", order, "--limit", "1", "--json").json["pipelines"]["invoices"]
        assert list(found["tenants"]) == [first]


def test_a_paused_tenant_is_among_those_that_are_sorted(troubles: Program, engine: Engine) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO taskbridge.sync_cursors (pipeline, tenant) "
            "SELECT 'invoices', 'a' || n FROM generate_series(1, 1200) n"
        )
    assert first_of(troubles, "pending") == ["failing"], "it comes after many by name"
    assert troubles("pause", "much").status == 0
    assert first_of(troubles, "pending") == ["much"]


def first_of(program: Program, order: str, limit: int = 1) -> list[str]:
    found = program("status", "--sort", order, "--limit", str(limit), "--json").json["pipelines"]["invoices"]
    return list(found["tenants"])


def test_to_sort_many_tenants_fewer_records_of_each_are_counted(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given more tenants than may be counted in full, many with more records than are counted at first
    with deployment.engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO taskbridge.records (source, tenant, key, document) "
            "SELECT 'invoices', 't' || lpad(at::text, 2, '0'), n, '{}' "
            "FROM generate_series(1, 40) at CROSS JOIN generate_series(1, CASE WHEN at > 30 THEN at ELSE 1 END) n"
        )
    monkeypatch.setattr(tenants, "MOST_COUNTED", 100)
    monkeypatch.setattr(tenants, "MOST_TO_SORT", 400)
    real, counted = Tenants.counts, list[int]()

    def counts(self: Tenants, pipeline: str, names: Collection[str], most: int | None = None) -> list[dict[str, Any]]:
        assert most is not None
        counted.append(len(names) * most)
        return real(self, pipeline, names, most)

    monkeypatch.setattr(Tenants, "counts", counts)
    runtime = runtime_of(deployment.app)
    for limit in (3, 12, 100):
        whole = tenants.totals(runtime, "invoices")
        views, more = tenants.sorted_by(runtime, whole, "pending", limit)
        assert more == (limit < 40)
        names = [one.tenant for one in views]
        assert len(names) == min(limit, 40)
        if limit == 3:
            assert names == ["t40", "t39", "t38"]
            assert [one.counts["pending"] for one in views] == [40, 39, 38]
    assert max(counted) <= 400
    assert len(counted) <= 8


def test_the_age_of_the_oldest_pending_record_is_shown(troubles: Program) -> None:
    header, *rows = troubles("status", "--sort", "age").stdout.splitlines()
    assert "pending  oldest" in header
    assert "5h ago" in rows[0]
    tenants = troubles("status", "--json").json["pipelines"]["invoices"]["tenants"]
    assert 5 * 3600 <= age(tenants["late"]["pending_since"]) < 5 * 3600 + 60
    assert tenants["spoilt"]["pending_since"] is None


def test_what_waits_is_not_denied_where_redis_is_empty_and_no_worker_looks(troubles: Program, engine: Engine) -> None:
    def totals() -> tuple[str, dict[str, Any]]:
        shown = troubles("status", "--limit", "2").stdout.splitlines()[0]
        found: dict[str, Any] = troubles("status", "--json").json["pipelines"]["invoices"]["totals"]
        return shown, {name: found[name] for name in ("pending", "oldest_seconds", "oldest_tenant", "unseen")}

    unknown = {"pending": None, "oldest_seconds": None, "oldest_tenant": None, "unseen": True}
    rest = "3 in quarantine, 2 tenants failing"
    assert totals() == (f"invoices: 0 runners, pending not known, {rest}", unknown)
    assert troubles("notify", "much").status == 0
    shown, found = totals()
    assert shown == f"invoices: 1 runner, 4 or more pending, {rest}"
    assert (found["pending"], found["oldest_tenant"], found["unseen"]) == (4, "much", True)
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO taskbridge.tails (pipeline, kind, snapshot) VALUES ('invoices', 'tail', pg_current_snapshot())"
        )
    shown, found = totals()
    assert (shown, found["unseen"]) == (f"invoices: 1 runner, 4 pending, {rest}", False)
    assert troubles("pause", "late").status == 0
    assert totals()[1]["unseen"], "what is paused has no runner"


def test_no_tenants_is_an_answer(taskbridge: Program) -> None:
    assert taskbridge("status").stdout == f"invoices: no tenants\ninvoices: {NO_WORKER}\n"
    nothing = {"tenants": {}, "totals": TOTALS, "next": None, "paused": False, "circuit": CLOSED}
    assert taskbridge("status", "--json").json == {
        "pipelines": {"invoices": nothing | {"unserved": [NO_WORKER]}},
    }


def test_all_pipelines_are_shown_or_the_one_that_is_named(taskbridge: Program) -> None:
    (taskbridge.directory / "handlers.py").write_text(
        "from taskbridge import pipeline\n@pipeline('other')\n@pipeline('invoices')\ndef handle(batch): pass\n",
        encoding="utf-8",
    )
    handlers = {"TASKBRIDGE_PIPELINES": "handlers"}
    assert set(taskbridge("status", "--json", **handlers).json["pipelines"]) == {"invoices", "other"}
    assert set(taskbridge("status", "--pipeline", "other", "--json", **handlers).json["pipelines"]) == {"other"}


def test_notify_says_what_the_gate_made_of_the_event(taskbridge: Program, gate_redis: redis.Redis, keys: Keys) -> None:
    assert taskbridge("notify", "France").stdout.startswith("started: ")
    assert taskbridge("notify", "France").stdout.startswith("absorbed: ")
    assert taskbridge("notify", "Malta", "--json").json == {
        "pipeline": "invoices",
        "tenant": "Malta",
        "answer": "started",
    }
    assert gate_redis.llen(keys.queue(Queue.FIRST)) == 2


@pytest.mark.parametrize("use", ["export $(cat urls)", 'set -a; eval "$(cat urls)"'])
def test_the_urls_reach_another_shell_as_they_are(use: str, taskbridge: Program) -> None:
    printed = taskbridge("env").stdout
    (taskbridge.directory / "urls").write_text(printed, encoding="utf-8")
    shell = f"{use}; exec python3 -c 'import json, os; print(json.dumps(dict(os.environ)))'"
    found = subprocess.run(
        ["/bin/sh", "-c", shell], cwd=taskbridge.directory, check=True, capture_output=True, text=True
    ).stdout
    variables = json.loads(found)
    for name in ("TASKBRIDGE_POSTGRES_URL", "TASKBRIDGE_REDIS_URL"):
        assert variables[name] == taskbridge.environment[name]
    assert variables["TASKBRIDGE_BROKER_URL"] == taskbridge.environment["TASKBRIDGE_REDIS_URL"]


def test_a_url_that_a_shell_would_take_apart_is_quoted(taskbridge: Program) -> None:
    url = taskbridge.environment["TASKBRIDGE_POSTGRES_URL"] + "?application_name=a%20b&connect_timeout=3"
    (taskbridge.directory / "urls").write_text(taskbridge("env", TASKBRIDGE_POSTGRES_URL=url).stdout, encoding="utf-8")
    shell = 'set -a; eval "$(cat urls)"; printf %s "$TASKBRIDGE_POSTGRES_URL"'
    found = subprocess.run(
        ["/bin/sh", "-c", shell], cwd=taskbridge.directory, check=True, capture_output=True, text=True
    ).stdout
    assert found == url


def test_migrate_prints_what_the_schema_was_and_is(taskbridge: Program) -> None:
    assert taskbridge("migrate").stdout.endswith(": nothing to do\n")
    dropped = taskbridge("migrate", "--to", "base", "--yes").stdout
    assert dropped.endswith(" -> none\n")
    newest = dropped.split()[1]
    assert taskbridge("migrate").stdout == f"schema none -> {newest}\n"
    unknown = taskbridge("migrate", "--to", "nix")
    assert unknown.status == 2
    assert "there is no schema 'nix'" in unknown.stderr


def test_dropping_all_tables_must_be_confirmed(taskbridge: Program, engine: Engine) -> None:
    assert taskbridge("migrate", "--to", "base").status == 2
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM taskbridge.records").scalar_one() == 0


def test_an_open_circuit_is_shown(taskbridge: Program, gate_redis: redis.Redis, keys: Keys) -> None:
    open_circuit(gate_redis, keys, "France", "Spain")
    shown = taskbridge("status").stdout
    assert "invoices: the circuit has been open for " in shown
    assert "everything fails, so nothing goes to quarantine; 0 probes failed, 1 tenant is in" in " ".join(shown.split())
    circuit = taskbridge("status", "--json").json["pipelines"]["invoices"]["circuit"]
    assert (circuit["open"], circuit["opened"], circuit["failed_probes"]) == (True, 1, 0)
    assert circuit["opened_at"] is not None


def test_an_open_circuit_without_anybody_at_work_waits_for_the_next_record(
    taskbridge: Program, gate_redis: redis.Redis, keys: Keys
) -> None:
    open_circuit(gate_redis, keys, "France", "Spain")
    gate_redis.delete(keys.due("invoices"), keys.wait_queue("invoices"))
    shown = taskbridge("status").stdout
    assert "nobody has anything to do: the next record of any tenant is its probe" in " ".join(shown.split())
    assert "everything fails" not in shown
