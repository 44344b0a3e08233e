"""`taskbridge adopt` and `taskbridge unadopt`: what they say, and a backfill that is stopped."""

from __future__ import annotations

import signal

import pytest
from sqlalchemy import Engine

from taskbridge.store import know
from tests.cli.program import Program
from tests.cli.test_doctor import findings
from tests.store.adopting import ORDERS, Reader, rows, run
from tests.waiting import wait_until

ADOPT = ("adopt", "orders", "--tenant", "customer", "--key", "id")


def test_a_table_is_adopted_once_looked_after_and_given_up(taskbridge: Program, engine: Engine) -> None:
    run(engine, ORDERS, "INSERT INTO orders VALUES (1, 'acme', 1, 'a')")
    printed = taskbridge(*ADOPT, "--print-sql")
    assert rows(engine, "SELECT FROM taskbridge.adopted") == []
    assert (printed.status, printed.stdout.count(";\n\n")) == (0, 12)
    first, again = taskbridge(*ADOPT), taskbridge(*ADOPT)
    assert first.stdout == "orders: public.orders is adopted: each change from now on is a record\n"
    assert again.stdout == "orders: public.orders was adopted before: nothing to do\n"
    assert findings(taskbridge("doctor", "--json"))["tables"] == [
        "ok: orders: its changes are recorded, and its rows can be read"
    ]
    run(engine, "INSERT INTO taskbridge.pipelines (pipeline, source) VALUES ('one', 'orders'), ('two', 'orders')")
    warnings = findings(taskbridge("doctor", "--json"))["tables"][:2]
    assert [one.partition(", so what")[0] for one in warnings] == [
        f"warning: orders: the pipeline {name} has read it too" for name in ("one", "two")
    ]
    run(engine, "DELETE FROM taskbridge.pipelines")
    run(engine, "DROP TRIGGER taskbridge_orders_update ON orders", "UPDATE orders SET note = 'unseen'")
    shown = taskbridge("doctor")
    assert shown.status == 1
    assert "problem  tables: orders: public.orders has no trigger taskbridge_orders_update" in shown.stdout
    mend = "taskbridge adopt public.orders --tenant customer --key id --source orders"
    assert f"-> run again: {mend}" in shown.stdout
    assert taskbridge(*mend.split()[1:]).stdout.endswith("each change from now on is a record\n")
    run(engine, "UPDATE orders SET note = 'seen'")
    ended = taskbridge("unadopt", "orders")
    assert ended.stdout == (
        "orders: public.orders is adopted no more\n"
        "1 record remains, with the cursors of no pipeline: what is pending is handled as before\n"
    )
    assert "tables" not in findings(taskbridge("doctor", "--json"))
    assert taskbridge("unadopt", "sales").status == 2


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
    know(engine, "orders", "orders")
    run(engine, "INSERT INTO orders VALUES (2, 'acme', 1, 'b')")
    reader = Reader(engine)
    assert prune(taskbridge, reader) == 1
    # when the table is backfilled for the first time, both are sent
    ended = taskbridge(*ADOPT, "--backfill")
    assert ended.stdout.splitlines()[-1] == "orders: 2 rows have their records"
    (first, second) = reader.records("acme")
    assert {first.external_id, second.external_id} == {"1", "2"}
    assert prune(taskbridge, reader) == 2
    # then it is done: it says so, and writes nothing
    ended = taskbridge(*ADOPT, "--backfill")
    assert ended.stdout.splitlines()[-1] == (
        "orders: the backfill of 2 rows was done before: nothing to do, also where records were pruned"
    )
    assert rows(engine, "SELECT key FROM taskbridge.records") == []
    # and --again sends them with other idempotency keys
    assert taskbridge(*ADOPT, "--again").status == 0
    again = reader.records("acme")
    assert {one.external_id for one in again} == {"1", "2"}
    assert not {one.idempotency_key for one in again} & {first.idempotency_key, second.idempotency_key}


def test_what_cannot_be_is_refused_in_one_line(taskbridge: Program) -> None:
    ended = taskbridge(*ADOPT)
    assert (ended.status, ended.stderr.count("\n")) == (2, 1)
    assert "there is no table orders: write its name as SQL has it" in ended.stderr
    assert taskbridge(*ADOPT, "--print-sql", "--backfill").status == 2


@pytest.mark.slow  # 100,000 rows; tests/store has the same, cut in the middle of a page
def test_a_backfill_that_is_interrupted_goes_on_where_it_was(taskbridge: Program, engine: Engine) -> None:
    run(engine, ORDERS, "INSERT INTO orders SELECT n, 'c' || n % 50, n, 'x' FROM generate_series(1, 100000) n")
    place = "SELECT backfilled FROM taskbridge.adopted"
    with taskbridge.started(*ADOPT, "--backfill") as running:
        wait_until(lambda: (rows(engine, place) or [(0,)])[0][0] > 0, "it began")
        running.process.send_signal(signal.SIGINT)
        ended = running.end()
    assert ended.status == 130
    ((at,),) = rows(engine, place)
    assert 0 < at < 100_000
    assert "Run the command again, with --backfill: it goes on there." in ended.stderr
    with taskbridge.started(*ADOPT, "--backfill") as running:
        wait_until(lambda: rows(engine, place)[0][0] > at, "it goes on")
        running.process.kill()
        running.process.wait()
    ended = taskbridge(*ADOPT, "--backfill")
    assert ended.stdout.endswith("orders: 100,000 rows have their records\n")
    found = rows(engine, "SELECT count(*), count(DISTINCT key), count(DISTINCT revision) FROM taskbridge.records")
    assert found == [(100_000, 100_000, 100_000)]
    # Each row was written once: the sequence gave no revision to a second try of a page that was committed.
    assert rows(engine, place) == [(100_000,)]
