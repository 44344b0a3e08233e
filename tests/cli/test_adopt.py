"""`taskbridge adopt` and `taskbridge unadopt`: what they say, and a backfill that is stopped."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from alembic import op
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import Engine

from taskbridge.store import adoption, backfill, register_pipeline
from tests.cli.program import Program
from tests.cli.test_doctor import findings
from tests.deployment import ROOT
from tests.store.adopting import ORDERS, Reader, rows, run
from tests.waiting import wait_until

ADOPT = ("adopt", "orders", "--tenant", "customer", "--key", "id")
REMINDED = "orders: rows that existed before the table was adopted have no record until they change"


def test_a_table_is_adopted_once_looked_after_and_given_up(taskbridge: Program, engine: Engine) -> None:
    run(engine, ORDERS, "INSERT INTO orders VALUES (1, 'acme', 1, 'a')")
    printed = taskbridge(*ADOPT, "--print-sql")
    assert rows(engine, "SELECT FROM taskbridge.adopted") == []
    assert (printed.status, printed.stdout.count(";\n\n")) == (0, 17)
    first, again = taskbridge(*ADOPT), taskbridge(*ADOPT)
    assert first.stdout == "orders: public.orders is now adopted: each change is recorded\n"
    assert again.stdout == "orders: public.orders was already adopted\n"
    assert "Existing rows are skipped until they change" in first.stderr
    assert "--backfill" in first.stderr
    assert again.stderr == ""
    # a backfill that was forgotten is told with what makes it, until it was made
    command = "taskbridge adopt public.orders --tenant customer --key id --source orders --backfill"
    assert f"warning  tables: {REMINDED}\n         -> run: {command};" in taskbridge("doctor").stdout
    assert f"{REMINDED}; run: {command};" in taskbridge("status").stdout
    assert taskbridge(*command.split()[1:]).stdout.endswith("orders: 1 row was recorded\n")
    assert findings(taskbridge("doctor", "--json"))["tables"] == [
        "ok: orders: changes are recorded, and rows can be read"
    ]
    run(engine, "DROP TRIGGER taskbridge_orders_update ON orders", "UPDATE orders SET note = 'unseen'")
    shown = taskbridge("doctor")
    assert shown.status == 1
    assert "problem  tables: orders: public.orders has no trigger taskbridge_orders_update" in shown.stdout
    mend = "taskbridge adopt public.orders --tenant customer --key id --source orders"
    told = "changes may have been missed, so send each row once more (with --from-now-on in place of --again: none): "
    assert f"-> {told}{mend} --again\n" in shown.stdout
    assert taskbridge(*mend.split()[1:], "--again").status == 0
    assert findings(taskbridge("doctor", "--json"))["tables"] == [
        "ok: orders: changes are recorded, and rows can be read"
    ]
    run(engine, "UPDATE orders SET note = 'seen'")
    ended = taskbridge("unadopt", "orders")
    assert ended.stdout == ("orders: public.orders is no longer adopted; its records are kept\n")
    assert "tables" not in findings(taskbridge("doctor", "--json"))
    assert taskbridge("unadopt", "sales").status == 2


def test_what_the_doctor_says_of_a_renamed_column_mends_it(taskbridge: Program, engine: Engine) -> None:
    old, new = "customer", "client of ours"
    run(engine, ORDERS, "INSERT INTO orders VALUES (1, 'acme', 1, 'a')")
    assert taskbridge(*ADOPT, "--columns", "note,total", "--from-now-on").status == 0
    run(engine, f'ALTER TABLE orders RENAME {old} TO "{new}"', "ALTER TABLE orders RENAME note TO text")
    shown = taskbridge("doctor", "--json").json["findings"]
    (first, second) = [one for one in shown if one["check"] == "tables"]
    assert (first["level"], first["text"]) == (
        "problem",
        f"orders: its column {old} is called {new} now, so changes of the table are not recorded",
    )
    assert second["text"] == "orders: its column note is called text now, so updates of the table are not recorded"
    assert first["remedy"] == second["remedy"]
    begin, _, mend = first["remedy"].partition("taskbridge ")
    assert begin == "run again: "
    assert taskbridge(*shlex.split(mend)).status == 0
    assert findings(taskbridge("doctor", "--json"))["tables"] == [
        "ok: orders: changes are recorded, and rows can be read"
    ]
    run(engine, "UPDATE orders SET text = 'seen'")
    assert Reader(engine).seen() == {"acme": ["1"]}


def prune(taskbridge: Program, reader: Reader) -> int:
    """Handle and prune all records of acme; return how many were pruned."""
    reader.records("acme")
    wait_until(
        lambda: taskbridge("prune", "--older-than", "1s", "--dry-run", "--json").json["records"] > 0, "old records"
    )
    pruned = taskbridge("prune", "--older-than", "1s", "--json").json["records"]
    assert isinstance(pruned, int)
    return pruned


def test_pruned_rows_are_sent_again_by_the_first_backfill_alone_and_by_again(
    taskbridge: Program, engine: Engine
) -> None:
    # given a row from before the adoption, and one whose record was handled and pruned
    run(engine, ORDERS, "INSERT INTO orders VALUES (1, 'acme', 1, 'a')")
    assert taskbridge(*ADOPT).status == 0
    register_pipeline(engine, "orders", "orders")
    run(engine, "INSERT INTO orders VALUES (2, 'acme', 1, 'b')")
    reader = Reader(engine)
    assert prune(taskbridge, reader) == 1
    # when the table is backfilled for the first time, both are sent
    ended = taskbridge(*ADOPT, "--backfill")
    assert ended.stdout == "orders: public.orders was already adopted\norders: 2 rows were recorded\n"
    (first, second) = reader.records("acme")
    assert {first.external_id, second.external_id} == {"1", "2"}
    assert prune(taskbridge, reader) == 2
    # then it is done: it says so, and writes nothing
    ended = taskbridge(*ADOPT, "--backfill")
    assert ended.stdout == (
        "orders: public.orders was already adopted\norders: the backfill of 2 rows was already complete\n"
    )
    assert rows(engine, "SELECT key FROM taskbridge.records") == []
    # and --again sends them with other idempotency keys
    assert taskbridge(*ADOPT, "--again").stdout == (
        "orders: public.orders was already adopted\n"
        "orders: 2 rows were recorded again, with new idempotency keys, because changes may have been missed before\n"
    )
    again = reader.records("acme")
    assert {one.external_id for one in again} == {"1", "2"}
    assert not {one.idempotency_key for one in again} & {first.idempotency_key, second.idempotency_key}


def test_a_backfill_that_stopped_is_told_with_what_ends_it(taskbridge: Program, engine: Engine) -> None:
    run(engine, ORDERS, "INSERT INTO orders SELECT n, 'acme', n, 'x' FROM generate_series(1, 4) n")
    assert taskbridge(*ADOPT).status == 0
    found = adoption(engine, "orders", "customer", ["id"])
    assert next(backfill(engine, found, 3)).rows == 3
    (stopped,) = [one for one in taskbridge("doctor", "--json").json["findings"] if one["check"] == "tables"]
    assert (stopped["level"], stopped["text"]) == (
        "warning",
        "orders: the backfill stopped after 3 rows, or is still running",
    )
    begin, _, mend = stopped["remedy"].partition("taskbridge ")
    assert begin == "if none is running: "
    assert taskbridge(*shlex.split(mend)).stdout.splitlines()[-1] == "orders: 4 rows were recorded"
    assert findings(taskbridge("doctor", "--json"))["tables"] == [
        "ok: orders: changes are recorded, and rows can be read"
    ]


def migrated(engine: Engine, migrate: Callable[[], None]) -> None:
    with engine.begin() as connection, Operations.context(MigrationContext.configure(connection)):
        migrate()


def test_the_statements_of_the_page_s_migration_adopt_a_table_and_give_it_up(
    taskbridge: Program,
    engine: Engine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # given what the two commands have printed
    run(engine, ORDERS)
    (tmp_path / "adopt_orders.sql").write_text(taskbridge(*ADOPT, "--print-sql").stdout)
    assert taskbridge(*ADOPT).status == 0
    (tmp_path / "unadopt_orders.sql").write_text(taskbridge("unadopt", "orders", "--print-sql").stdout)
    assert findings(taskbridge("doctor", "--json"))["tables"][0].startswith("ok"), "nothing was run"
    assert taskbridge("unadopt", "orders").status == 0
    # when Alembic runs the page's functions
    page = (ROOT / "docs/how-to/adopt-in-a-migration.md").read_text(encoding="utf-8")
    (block,) = [one for one in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "def upgrade" in one]
    names: dict[str, Any] = {"op": op, "Path": Path}
    exec(block, names)  # noqa: S102 - the page's own
    monkeypatch.chdir(tmp_path)
    reader = Reader(engine)
    for direction, seen in (("upgrade", {"acme": ["1"]}), ("downgrade", {})):
        migrated(engine, names[direction])
        if direction == "upgrade":
            assert not [one for one in findings(taskbridge("doctor", "--json"))["tables"] if "function" in one]
        run(engine, "INSERT INTO orders VALUES (1, 'acme', 1, 'a') ON CONFLICT (id) DO UPDATE SET total = 2")
        assert reader.seen() == seen
    assert "tables" not in findings(taskbridge("doctor", "--json"))
