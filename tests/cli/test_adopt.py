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

from taskbridge.store import adoption, backfill
from tests.cli.program import Program
from tests.deployment import ROOT
from tests.store.adopting import ORDERS, Reader, rows, run

ADOPT = ("adopt", "orders", "--tenant", "customer", "--key", "id")


def tables(taskbridge: Program) -> list[dict[str, str]]:
    """What the doctor finds of adopted tables."""
    return [one for one in taskbridge("doctor", "--json").json["findings"] if one["check"] == "tables"]


def test_a_table_is_adopted_once_and_backfilled_again_on_demand(taskbridge: Program, engine: Engine) -> None:
    run(engine, ORDERS, "INSERT INTO orders VALUES (1, 'acme', 1, 'a'), (2, 'acme', 2, 'b')")
    assert taskbridge(*ADOPT).status == 0
    assert taskbridge(*ADOPT).stderr == "", "only the first time it says what reads the table"
    assert [one["level"] for one in tables(taskbridge)] == ["warning"], "the backfill is due"
    revisions = "SELECT key, revision FROM taskbridge.records ORDER BY key"
    assert taskbridge(*ADOPT, "--backfill").status == 0
    written = rows(engine, revisions)
    assert [key for key, _ in written] == ["1", "2"]
    assert taskbridge(*ADOPT, "--backfill").status == 0
    assert rows(engine, revisions) == written
    assert taskbridge(*ADOPT, "--again").status == 0
    assert min(revision for _, revision in rows(engine, revisions)) > max(revision for _, revision in written)
    assert [one["level"] for one in tables(taskbridge)] == ["ok"]
    assert taskbridge("unadopt", "orders").status == 0
    assert tables(taskbridge) == []


def stop_the_backfill(engine: Engine) -> None:
    assert next(backfill(engine, adoption(engine, "orders", "customer", ["id"]), 3)).rows == 3


@pytest.mark.parametrize(
    ("change", "level", "text"),
    [
        ("DROP TRIGGER taskbridge_orders_update ON orders", "problem", "has no trigger taskbridge_orders_update"),
        ('ALTER TABLE orders RENAME customer TO "client of ours"', "problem", "customer is called client of ours now"),
        (stop_the_backfill, "warning", "the backfill stopped after 3 rows, or is still running"),
    ],
)
def test_what_the_doctor_says_of_an_adopted_table_mends_it(
    taskbridge: Program, engine: Engine, change: Any, level: str, text: str
) -> None:
    run(engine, ORDERS, "INSERT INTO orders SELECT n, 'acme', n, 'x' FROM generate_series(1, 4) n")
    assert taskbridge(*ADOPT, *(() if callable(change) else ("--from-now-on",))).status == 0
    if callable(change):
        change(engine)
    else:
        run(engine, change)
    (found,) = tables(taskbridge)
    assert (found["level"], text in found["text"]) == (level, True)
    _, _, mend = found["remedy"].rpartition("taskbridge ")
    assert taskbridge(*shlex.split(mend)).status == 0
    assert [one["level"] for one in tables(taskbridge)] == ["ok"]


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
    assert tables(taskbridge)[0]["level"] == "ok", "nothing was run"
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
            assert not [one for one in tables(taskbridge) if "function" in one["text"]]
        run(engine, "INSERT INTO orders VALUES (1, 'acme', 1, 'a') ON CONFLICT (id) DO UPDATE SET total = 2")
        assert reader.seen() == seen
    assert tables(taskbridge) == []
