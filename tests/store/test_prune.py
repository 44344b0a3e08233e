"""Pruning deletes what every pipeline is done with and nothing else, in steps that are short."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import pytest
from sqlalchemy import Engine

from taskbridge.store import (
    Cursors,
    Incoming,
    Prune,
    Records,
    count_unmatched,
    prune,
    read_unmatched,
    receive_statement,
    record_invoice,
    register_pipeline,
)
from taskbridge.store.db import LOOKUPS, local_settings
from taskbridge.store.records import execute
from tests import quarantined as quarantined_records
from tests.store.adopting import rows, run
from tests.store.plans import analyze, fill, nodes, pages, plan
from tests.store.sweeping import batch

INVOICES, MIRROR, ALERTS = "invoices", "mirror", "alerts"
STATES: Final = ("handled", "pending", "quarantined", "discarded", "retried", "discarded, retried")
MONTH: Final = Prune(timedelta(days=30), {INVOICES: INVOICES, ALERTS: ALERTS})


def ago(days: float) -> datetime:
    return datetime.now(UTC) - timedelta(days=days)


def write(engine: Engine, tenant: str, number: str, days: float = 31, source: str = INVOICES) -> None:
    """Record something so long ago; without a tenant it matched no criterion."""
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO taskbridge.records (source, tenant, key, document, changed_at, reason) "
            "VALUES (%s, %s, %s, '{}', %s, %s)",
            (source, tenant, number, ago(days), None if tenant else "no criterion"),
        )


def put_in_quarantine(
    engine: Engine, tenant: str, number: str, state: str = "quarantined", pipeline: str = INVOICES, days: float = 31
) -> None:
    times: dict[str, Any] = {"quarantined_at": ago(days)}
    times |= {"retry_at": ago(0)} if state.endswith("retried") else {}
    times |= {"discarded_at": ago(0)} if state.startswith("discarded") else {}
    quarantined_records.put_in_quarantine(engine, tenant, number, pipeline=pipeline, **times)


def handle(engine: Engine, tenant: str, pipeline: str = INVOICES, limit: int = 100) -> None:
    """Deliver one batch to nobody."""
    source = ALERTS if pipeline == ALERTS else INVOICES
    register_pipeline(engine, pipeline, source)
    batch(Cursors(engine, source), limit, tenant=tenant, pipeline=pipeline)


def left(engine: Engine) -> set[str]:
    return {key for (key,) in rows(engine, "SELECT key FROM taskbridge.records")}


def quarantined(engine: Engine) -> set[str]:
    return {number for (number,) in rows(engine, "SELECT external_id FROM taskbridge.quarantine")}


def counts(engine: Engine, what: Prune, size: int = 1000) -> Counter[str]:
    """Prune to the end and add up what the steps say."""
    total: Counter[str] = Counter()
    for step in prune(engine, what, size):
        assert step.deleted <= size
        total.update({step.table: step.deleted, "kept": step.kept})
        total["quarantine"] += step.quarantine
        assert min(step.deleted, step.quarantine, step.kept) >= 0
    return +total


def reach(engine: Engine, tenant: str, number: str, pipeline: str, state: str) -> None:
    """Bring the tenant's only record into a state of the pipeline."""
    if state != "pending":
        handle(engine, tenant, pipeline)
    if state not in ("pending", "handled"):
        put_in_quarantine(engine, tenant, number, state, pipeline)


def test_an_invoice_goes_only_when_every_pipeline_has_handled_or_discarded_it(engine: Engine) -> None:
    # given one old and one young invoice in every pair of states of two pipelines
    for first, second in itertools.product(STATES, STATES):
        for age, days in (("old", 31), ("young", 29)):
            name = f"{age} {first} {second}"
            write(engine, name, name, days)
            reach(engine, name, name, INVOICES, first)
            reach(engine, name, name, MIRROR, second)
    shown = (
        "SELECT external_id FROM taskbridge.record_states WHERE external_id LIKE 'old%' "
        "GROUP BY 1 HAVING bool_and(state IN ('handled', 'discarded'))"
    )
    done = {name for (name,) in rows(engine, shown)}
    assert len(done) == 4
    before, kept = left(engine), quarantined(engine)
    expected = Counter({"records": 4, "quarantine": 4, "kept": 32})
    # when they are pruned, at first only for show
    assert counts(engine, replace(MONTH, dry_run=True), 7)["records"] == 4
    assert (left(engine), quarantined(engine)) == (before, kept)
    assert counts(engine, MONTH, 7) == expected
    # then those are gone that the view called done, and what was discarded of them
    assert left(engine) == before - done
    assert quarantined(engine) == kept - done
    assert counts(engine, MONTH, 7) == Counter({"kept": 32})


def test_many_steps_are_as_one_and_end_where_a_sweep_has_come_to_or_all_is_young(engine: Engine) -> None:
    for number in "abcdef":
        write(engine, "acme", number)
    for number in "uvwxyz":
        write(engine, "acme", number, days=29)
    handle(engine, "acme", limit=5)
    steps = [step for step in prune(engine, MONTH, 2) if step.table == "records"]
    assert [step.deleted for step in steps][:3] == [2, 2, 1]
    assert left(engine) == set("fuvwxyz")


def test_one_pipelines_records_can_be_pruned_alone(engine: Engine) -> None:
    write(engine, "acme", "a")
    handle(engine, "acme")
    for pipeline, message_id in itertools.product((ALERTS, "other"), ("m1", "m2")):
        write(engine, "billing", f"{pipeline} {message_id}", source=pipeline)
    handle(engine, "billing", ALERTS)
    everything = left(engine)
    every = Prune(MONTH.older_than, {**MONTH.sources, "other": "other"})
    assert counts(engine, replace(every, pipeline=ALERTS)) == Counter({"records": 2})
    assert left(engine) == everything - {"alerts m1", "alerts m2"}
    assert counts(engine, replace(every, pipeline=INVOICES)) == Counter({"records": 1})


def test_a_quarantine_row_goes_when_its_record_is_gone_or_has_changed(engine: Engine) -> None:
    for number in ("there", "changed", "changed just now"):
        write(engine, "acme", number)
    write(engine, "acme", "there too", source=ALERTS)
    handle(engine, "acme")
    register_pipeline(engine, ALERTS, ALERTS)
    for number in ("there", "changed", "gone"):
        put_in_quarantine(engine, "acme", number)
    put_in_quarantine(engine, "acme", "there too", pipeline=ALERTS)
    put_in_quarantine(engine, "acme", "gone too", pipeline=ALERTS)
    put_in_quarantine(engine, "acme", "changed just now", days=1)
    for number in ("changed", "changed just now"):
        assert record_invoice(engine, "acme", number, {"version": 2})
    only = replace(MONTH, pipeline=INVOICES)
    assert counts(engine, only, 2)["quarantine"] == 2
    assert quarantined(engine) == {"there", "there too", "gone too", "changed just now"}
    assert counts(engine, MONTH, 2)["quarantine"] == 1
    assert quarantined(engine) == {"there", "there too", "changed just now"}


def test_the_journal_is_kept_unless_it_is_asked_for(engine: Engine) -> None:
    run(
        engine,
        "INSERT INTO taskbridge.deliveries (pipeline, tenant, external_id, revision, token, delivered_at) "
        "SELECT p, 'acme', n::text, 1, 't', now() - d * interval '1 day' "
        "FROM unnest(ARRAY['invoices', 'mirror']) p, generate_series(1, 5) n, unnest(ARRAY[31, 29]) d ORDER BY d DESC",
    )
    assert counts(engine, MONTH) == Counter()
    mirror = Prune(MONTH.older_than, {MIRROR: INVOICES}, pipeline=MIRROR, deliveries=True)
    assert counts(engine, mirror, 3) == Counter({"deliveries": 5})
    assert counts(engine, replace(MONTH, deliveries=True), 3) == Counter({"deliveries": 5})
    young = "SELECT count(*) FROM taskbridge.deliveries WHERE delivered_at > now() - interval '30 days'"
    assert rows(engine, young) == [(10,)]


def test_the_version_that_a_webhook_brought_goes_with_its_record(engine: Engine) -> None:
    for number, days in (("old", 31), ("young", 29), ("comes again", 31)):
        write(engine, "acme", number, days)
        execute(engine, receive_statement(Incoming("invoices", None, "acme", number, Decimal(5), "{}")))
    handle(engine, "acme")
    with engine.connect() as other:
        # As a webhook does that brings the next version, and waits for the record then.
        other.exec_driver_sql("UPDATE taskbridge.record_versions SET version = 6 WHERE key = 'comes again'")
        assert counts(engine, MONTH)["records"] == 2
        other.commit()
    assert left(engine) == {"young"}
    versions = rows(engine, "SELECT key, version FROM taskbridge.record_versions ORDER BY key")
    assert versions == [("comes again", 6), ("young", 5)]


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read"])
@pytest.mark.parametrize(
    "meanwhile",
    [
        "UPDATE taskbridge.records SET document = '{\"version\": 2}'",
        "UPDATE taskbridge.quarantine SET retry_at = now()",
    ],
    ids=["records", "quarantine"],
)
def test_what_changes_while_a_step_looks_at_it_stays(engine: Engine, meanwhile: str, isolation: str) -> None:
    run(engine, f"ALTER DATABASE \"{engine.url.database}\" SET default_transaction_isolation TO '{isolation}'")
    engine.dispose()
    write(engine, "acme", "a")
    reach(engine, "acme", "a", INVOICES, "discarded")
    before = left(engine)
    found: Counter[str] = Counter()
    pruning = threading.Thread(target=lambda: found.update(counts(engine, MONTH)))
    with engine.connect() as other:
        other.exec_driver_sql(meanwhile)
        pruning.start()
        # Nobody is waited for: who writes one may write more of them.
        pruning.join(timeout=10)
        assert found["kept"] == 1
        other.commit()
    assert (found["records"], found["kept"]) == (0, 1)
    assert left(engine) == before


# Few enough that reading a table whole would look cheap to the planner.
ROWS, SIZE = 12_000, 1_000


def test_a_step_reads_its_own_rows_and_not_the_tables_whether_or_not_there_are_statistics(engine: Engine) -> None:
    """There are old and handled records, quarantine rows whose records are gone, and deliveries."""
    for source in (INVOICES, ALERTS):
        fill(engine, source, ROWS, 600)
    run(
        engine,
        "INSERT INTO taskbridge.quarantine (pipeline, tenant, external_id, revision, reason, quarantined_at) "  # noqa: S608
        "SELECT 'invoices', 'tenant-' || n % 600, 'gone ' || n, 1, 'why', now() - interval '31 days' "
        f"FROM generate_series(1, {ROWS}) n",
        "INSERT INTO taskbridge.deliveries (pipeline, tenant, external_id, revision, token, delivered_at) "  # noqa: S608
        f"SELECT 'invoices', 'tenant-7', n::text, 1, 't', now() - interval '31 days' FROM generate_series(1, {ROWS}) n",
    )
    in_the_middle = (
        "SELECT xid::text, id::text FROM taskbridge.records WHERE source = 'invoices' ORDER BY xid, id "
        "OFFSET 5000 LIMIT 1"
    )
    after = {
        "records": [*rows(engine, in_the_middle)[0]],
        "quarantine": ["invoices", "tenant-3", ""],
        "deliveries": ROWS // 2,
    }
    for table, where in after.items():
        reads_its_own_rows(engine, table, where)
    analyze(engine, "sync_cursors", *after)
    for table, where in after.items():
        reads_its_own_rows(engine, table, where)


def reads_its_own_rows(engine: Engine, table: str, after: Any) -> None:
    values = {"readers": [INVOICES], "source": INVOICES, "pipeline": None, "dry_run": False, "limit": SIZE}
    with engine.connect() as connection:
        for statement in local_settings(LOOKUPS):
            connection.exec_driver_sql(statement)
        top = plan(connection, f"prune_{table}", {**values, "after": after, "before": ago(30)})
    found = [node for node in nodes(top) if "Relation Name" in node and node["Node Type"] != "ModifyTable"]
    read = [node["Actual Loops"] * (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) for node in found]
    assert max(read) == SIZE
    assert not [node["Relation Name"] for node in found if node["Node Type"] == "Seq Scan"]
    # What a row costs: to be read, looked up in cursors and quarantine, and deleted with its index entries.
    assert pages(top) < SIZE * 40


def test_what_no_criterion_matched_goes_once_somebody_gave_it_up(engine: Engine) -> None:
    for number in "abc":
        write(engine, "", number, source=ALERTS)
    write(engine, "acme", "newest", source=ALERTS)
    records = Records(engine, ALERTS)
    assert counts(engine, MONTH)["records"] == 0
    assert records.discard(["a", "nix"]) == ["a"]
    assert sorted(one.message_id for one in read_unmatched(engine, ALERTS)) == ["b", "c"]
    assert count_unmatched(engine, ALERTS) == 2
    assert counts(engine, MONTH)["records"] == 1
    assert left(engine) == {"b", "c", "newest"}
    assert sorted(records.discard(None)) == ["b", "c"]
    assert counts(engine, MONTH)["records"] == 2
    assert left(engine) == {"newest"}
