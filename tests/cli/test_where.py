"""Where a record is, what doctor says of records that nobody reads or that wait, and a pipeline that is no more."""

from __future__ import annotations

import json

from sqlalchemy import Engine

from taskbridge.store import Looks, record, where_is
from tests.cli.program import Program
from tests.cli.test_doctor import findings
from tests.cli.test_why import RUNS
from tests.store.adopting import ORDERS, run


def test_a_record_is_found_by_its_key_alone(taskbridge: Program, engine: Engine) -> None:
    record(engine, "invoices", "acme", "7", {})
    record(engine, "typo", "bolt", "7", {})
    run(
        engine,
        "INSERT INTO taskbridge.pipelines (pipeline, source) VALUES ('invoices', 'invoices'), ('gone', 'invoices')",
        "INSERT INTO taskbridge.quarantine (pipeline, tenant, external_id, revision, reason) "
        "SELECT 'gone', tenant, key, revision, E'bad\\nrow' FROM taskbridge.records WHERE tenant = 'acme'",
    )
    shown = taskbridge("where", "7")
    lines = [line for line in shown.stdout.splitlines() if not line.startswith(" ")]
    assert [line.rpartition(": ")[2] if "bad" not in line else line[-30:] for line in lines] == [
        "ned in gone after 1 attempt: bad row"[-30:],
        "pending in invoices; `taskbridge why acme` says when it is taken",
        "no pipeline reads this source",
    ]
    assert [one["state"] for one in taskbridge("where", "7", "--tenant", "acme", "--json").json["records"]] == [
        "quarantined",
        "pending",
    ]
    run(
        engine,
        "INSERT INTO taskbridge.sync_cursors (pipeline, tenant, failures, last_error) "
        "VALUES ('invoices', 'acme', 3, E'no\\nanswer')",
    )
    told = "its tenant failed 3 times in a row, last: no answer; `taskbridge why acme` says when it is taken"
    assert told in taskbridge("where", "7").stdout
    run(engine, "DELETE FROM taskbridge.quarantine")
    told_of_each = taskbridge("where", "7", "--source", "invoices").stdout.splitlines()
    (at,) = (at for at, line in enumerate(told_of_each) if line.endswith("pending in gone"))
    not_here = "this process does not declare gone, so no steps are told: name the module that declares it in"
    assert told_of_each[at + 1].startswith(f"  {not_here} TASKBRIDGE_PIPELINES"), "`why` cannot tell either"
    notes = {one["pipeline"]: one["note"] for one in taskbridge("where", "7", "--json").json["records"]}
    assert (notes["gone"][: len(not_here)], not_here in str(notes["invoices"])) == (not_here, False)
    missing = taskbridge("where", "8")
    assert (missing.status, "no record has the key '8'" in missing.stderr) == (1, True)


def test_a_tenant_in_place_of_a_key_is_told_how_to_look(taskbridge: Program, engine: Engine) -> None:
    record(engine, "invoices", "acme & co", "7", {})
    for more in ((), ("--json",)):
        ended = taskbridge("where", "acme & co", *more)
        assert ended.status == 1
        assert ended.stderr == (
            "taskbridge: no record has the key 'acme & co', but a tenant of invoices is called so: "
            "`taskbridge status 'acme & co'` shows how it stands\n"
        )
    assert "is called so" not in taskbridge("where", "acme & co", "--tenant", "bolt").stderr
    assert "no record has the key ' x'" in taskbridge("where", " x").stderr


KEYS = (
    ["eu", "211"],
    ['a"b\\c/d', "7"],
    ["a\tb\nc\x01\x1f", "8"],
    ["\u00e9\u20ac\U0001f600", "9"],
    ["true", "10"],
)


def test_a_key_of_several_columns_is_found_however_its_array_is_spelled(taskbridge: Program, engine: Engine) -> None:
    run(engine, "CREATE TABLE orders (customer text, region text, number bigint, PRIMARY KEY (region, number))")
    adopt = ("adopt", "orders", "--source", "invoices", "--tenant", "customer", "--key", "region", "--key", "number")
    assert taskbridge(*adopt).status == 0
    with engine.begin() as connection:
        for region, number in KEYS:
            written = "INSERT INTO orders VALUES ('acme', %s, %s)"
            connection.exec_driver_sql(written, (region, int(number)))
    for region, number in KEYS:
        numbers = f"[{json.dumps(region)},{number}]"
        spellings = [numbers, f"[ {json.dumps(region, ensure_ascii=False)} ,\n{json.dumps(number)}]"]
        for one in spellings:
            (found,) = where_is(engine, one)
            assert json.loads(found["key"]) == [region, number]
    run(
        engine,
        "INSERT INTO taskbridge.pipelines (pipeline, source) VALUES ('invoices', 'invoices')",
        "INSERT INTO taskbridge.quarantine (pipeline, tenant, external_id, revision, reason) "
        "SELECT 'invoices', tenant, key, revision, 'bad' FROM taskbridge.records WHERE key LIKE '%eu%'",
    )
    assert taskbridge("where", '["eu","211"]', "--json").json["records"][0]["key"] == '["eu", "211"]'
    assert [one["key"] for one in Looks(engine).records('["eu",211]', ["invoices"], None, 5)] == ['["eu", "211"]']
    retried = taskbridge("quarantine", "retry", '["eu","211"]', '["eu","212"]', "--json")
    assert (retried.status, retried.json["retried"], retried.json["not_found"]) == (1, 1, ['["eu","212"]'])
    for odd in ("[", "[1", '["\\ud800"]', "[" * 100_000, "[null]", "[[]]", "[NaN]", "[]"):
        assert where_is(engine, odd) == []


def test_records_that_wait_or_that_nobody_reads_are_told_of(taskbridge: Program, engine: Engine) -> None:
    record(engine, "typo", "bolt", "7", {})
    run(engine, ORDERS)
    assert taskbridge("adopt", "orders", "--tenant", "customer", "--key", "id").status == 0
    record(engine, "invoices", "acme", "7", {})
    written = "UPDATE taskbridge.records SET changed_at = now() - interval '9 min'"
    run(engine, f"SET LOCAL taskbridge.keep_ids = 'on'; {written}")
    assert taskbridge("notify", "acme").status == 0

    work = findings(taskbridge("doctor", "--json"))["work"]

    for part in (
        "typo: no pipeline reads",
        "orders: no pipeline reads",
        "invoices: records wait, the oldest for 9 ",
    ):
        assert any(part in line for line in work), (part, work)
    assert taskbridge("unmatched", "list", "orders").status == 0


def test_a_pipeline_that_is_no_more_keeps_records_for_ever(taskbridge: Program, engine: Engine) -> None:
    record(engine, "invoices", "acme", "7", {})
    run(
        engine,
        "INSERT INTO taskbridge.pipelines (pipeline, source) VALUES ('gone', 'invoices')",
        "INSERT INTO taskbridge.sync_cursors (pipeline, tenant) VALUES ('gone', 'acme'), ('gone', 'bolt')",
        "INSERT INTO taskbridge.tails (pipeline, kind, snapshot) VALUES ('gone', 'tail', pg_current_snapshot())",
    )
    assert taskbridge("forget", "gone").status == 2
    assert taskbridge("forget", "invoices", "--yes").status == 2
    watched = taskbridge("forget", "gone", "--yes")
    assert (watched.status, "a worker looks after 'gone'" in watched.stderr) == (1, True)
    run(engine, "UPDATE taskbridge.tails SET stored_at = now() - interval '2 min'")
    assert taskbridge("forget", "gone", "--yes").stdout == "gone is forgotten: 2 cursors, 0 rows of quarantine\n"
    with engine.connect() as connection:
        for table in ("pipelines", "sync_cursors", "tails"):
            count = f"SELECT count(*) FROM taskbridge.{table} WHERE pipeline = 'gone'"  # noqa: S608 - our constant
            assert connection.exec_driver_sql(count).scalar_one() == 0
    assert taskbridge("forget", "gone", "--yes").status == 2


def test_where_and_top_answer_without_redis(taskbridge: Program, engine: Engine) -> None:
    record(engine, "invoices", "acme", "7", {})
    away = {"TASKBRIDGE_REDIS_URL": "redis://127.0.0.1:1/0"}
    shown = taskbridge("where", "7", **away)
    assert (shown.status, "pending in invoices" in shown.stdout) == (0, True)
    assert taskbridge("where", "8", **away).status == 1
    run(engine, RUNS)
    assert taskbridge("top", **away).status == 0
