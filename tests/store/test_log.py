"""One log for every source: who writes it in which way, which pipelines read it, and where a new one begins."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Column, Engine, Integer, MetaData, Table
from sqlalchemy.exc import DataError

from taskbridge.common.names import check_key, check_tenant
from taskbridge.declaring.criteria import Match, Unmatched
from taskbridge.declaring.pipeline import Pipeline
from taskbridge.declaring.policy import LatencyNeutral
from taskbridge.errors import InvalidInput, InvalidName, InvalidPolicy
from taskbridge.store import (
    Changes,
    Cursors,
    Records,
    Tenants,
    migrate,
    record,
    record_many,
    register_pipeline,
)
from tests.quarantined import put_in_quarantine
from tests.store import sweeping
from tests.store.adopting import rows, run
from tests.store.sweeping import IN_ONE_DATABASE


def batch(engine: Engine, pipeline: str, source: str, tenant: str = "acme", limit: int = 100) -> list[str]:
    return sweeping.batch(Cursors(engine, source), limit, tenant=tenant, pipeline=pipeline)


def by_sql(engine: Engine, source: Any, tenant: Any, name: Any, document: Any) -> bool:
    """As a producer in another language does it."""
    with engine.begin() as connection:
        values = (source, tenant, name, json.dumps(document))
        return bool(connection.exec_driver_sql("SELECT taskbridge.record(%s, %s, %s, %s::jsonb)", values).scalar_one())


def test_sql_and_python_write_the_same_and_say_the_same(engine: Engine) -> None:
    assert by_sql(engine, "orders", "acme", "1", {"total": "4.95"}) is True
    assert record(engine, "orders", "acme", "1", {"total": "4.95"}) is False
    assert by_sql(engine, "orders", "acme", "1", {"total": "4.95"}) is False
    assert by_sql(engine, "orders", "acme", "1", {"total": "5.95"}) is True
    assert record(engine, "orders", "acme", "1", {"total": "5.95"}) is False
    assert batch(engine, "orders", "orders") == ["1"]
    assert batch(engine, "invoices", "invoices") == []


CHARACTERS = st.characters(codec="utf-8", exclude_characters="\0")
NAMES = st.one_of(
    st.text(CHARACTERS, max_size=5),
    st.sampled_from(
        ["a" * 200, "a" * 201, " a", "a\u2003", "a\u0085b", "\u2028", "a\tb", "a\u00a0b", "\u3000x", "'\\%s"]
    ),
)


@settings(IN_ONE_DATABASE, max_examples=60)
@given(tenant=NAMES, name=NAMES)
def test_postgres_takes_the_names_that_python_takes_and_no_others(engine: Engine, tenant: str, name: str) -> None:
    try:
        check_tenant(tenant)
        check_key(tenant, name)
        allowed = True
    except (InvalidName, InvalidInput):
        allowed = False
    insert = "INSERT INTO taskbridge.records (source, tenant, key, document) VALUES ('orders', %s, %s, '{}')"
    with engine.connect() as connection:
        try:
            connection.exec_driver_sql(insert, (tenant, name))
            taken, reason = True, "not allowed"
        except DataError as error:
            taken = False
            reason = str(error.orig)
        connection.rollback()
    assert taken is allowed, (tenant, name)
    assert any(part in reason for part in ("not allowed", "strip it", "is empty"))


def test_a_source_that_could_be_mistaken_is_refused_by_python_and_sql(engine: Engine) -> None:
    for source in ("a", "a-b_7", "a" * 63):
        assert record(engine, source, "acme", "1", {})
        assert by_sql(engine, source, "acme", "2", {})
    for source in ("", "Orders", "a:b", "a\n", "7up", "a" * 64):
        with pytest.raises(InvalidName, match="source"):
            record(engine, source, "acme", "1", {})
        with pytest.raises(DataError, match="source"):
            by_sql(engine, source, "acme", "1", {})


def test_many_records_are_written_in_their_order_and_changes_are_counted_by_tenant(engine: Engine) -> None:
    some = [(f"t{at % 3}", f"{at:05}", {"at": at}) for at in range(12_001)]
    assert record_many(engine, "orders", some) == {"t0": 4001, "t1": 4000, "t2": 4000}
    again = [*some[:3], ("t0", "00000", {"at": -1}), ("t0", "00000", {"at": -2})]
    assert record_many(engine, "orders", again) == {"t0": 1}
    assert rows(engine, "SELECT document FROM taskbridge.records WHERE key = '00000'") == [({"at": -2},)]
    assert batch(engine, "orders", "orders", "t1", 5) == ["00001", "00004", "00007", "00010", "00013"]
    assert record_many(engine, "orders", []) == {}
    with pytest.raises(InvalidInput, match="'acme', record '2'"):
        record_many(engine, "orders", [("acme", "1", {}), ("acme", "2", {"n": float("nan")})])
    assert rows(engine, "SELECT FROM taskbridge.records WHERE tenant = 'acme'") == []


def test_a_message_is_recorded_once_whatever_tenant_it_is_given(engine: Engine) -> None:
    alerts = Records(engine, "alerts")
    assert alerts.write("m-1", "{}", Unmatched("no criterion")) is True
    assert alerts.write("m-1", "{}", Match("acme", 1000, "c")) is False
    list(alerts.match_again(lambda _: Match("acme", 1000, "c")))
    assert alerts.write("m-1", "{}", Match("bolt", 1000, "c")) is False
    assert Records(engine, "audits").write("m-1", "{}", Match("bolt", 1000, "c")) is True
    assert rows(engine, "SELECT source, tenant FROM taskbridge.records ORDER BY 1") == [
        ("alerts", "acme"),
        ("audits", "bolt"),
    ]


def test_a_message_that_cannot_be_matched_because_its_key_is_taken_stops_no_other(engine: Engine) -> None:
    orders = Records(engine, "orders")
    for message_id in ("m1", "m2"):
        orders.write(message_id, "{}", Unmatched("no criterion"))
    record(engine, "orders", "acme", "m1", {"other": 1})
    found = orders.match_again(lambda _: Match("acme", 1, "c"))
    assert [one.message_id for one, _ in found] == ["m2"]


def test_a_pipeline_cannot_change_its_source(engine: Engine) -> None:
    register_pipeline(engine, "ship", "orders")
    register_pipeline(engine, "ship", "orders", "now")
    with pytest.raises(InvalidPolicy, match=r"has read the source 'orders' until now.*source='orders'"):
        register_pipeline(engine, "ship", "invoices")


def age(engine: Engine, number: str, days: int) -> None:
    aged = f"UPDATE taskbridge.records SET changed_at = now() - interval '{days} days' WHERE key = '{number}'"  # noqa: S608
    run(engine, f"SET LOCAL taskbridge.keep_ids = 'on'; {aged}")


def test_a_new_pipeline_begins_where_it_is_told_to(engine: Engine) -> None:
    with engine.connect() as late:
        record(engine, "orders", "acme", "late", {}, late)
        for number, days in (("old", 10), ("young", 1)):
            record(engine, "orders", "acme", number, {})
            age(engine, number, days)
        register_pipeline(engine, "all", "orders")
        register_pipeline(engine, "since", "orders", datetime.now(UTC) - timedelta(days=5))
        register_pipeline(engine, "fresh", "orders", "now")
        # One that was begun before and commits later was not there yet.
        late.commit()
    record(engine, "orders", "acme", "new", {})
    found = {name: [*Changes(engine).pending(name, "orders")] for name in ("all", "since", "fresh")}
    assert found == {"all": ["acme"], "since": ["acme"], "fresh": ["acme"]}
    assert sorted(batch(engine, "all", "orders")) == ["late", "new", "old", "young"]
    assert sorted(batch(engine, "fresh", "orders")) == ["late", "new"]
    # From a time: all that was written since, and at the most a little more.
    assert {"late", "new", "young"} <= set(batch(engine, "since", "orders"))


COUNTED = ("pending", "handled", "quarantined", "discarded", "known")


def counts(engine: Engine, pipeline: str, tenant: str = "acme", most: int | None = None) -> tuple[Any, ...]:
    (found,) = Tenants(engine, "orders").counts(pipeline, [tenant], most)
    return tuple(found[name] for name in COUNTED)


def test_what_a_start_skipped_does_not_count_as_handled(engine: Engine) -> None:
    # given three records that a new pipeline skips, and one whose transaction is on
    with engine.connect() as late:
        record(engine, "orders", "acme", "late", {}, late)
        for number in "abc":
            record(engine, "orders", "acme", number, {})
        record(engine, "orders", "bolt", "a", {})
        register_pipeline(engine, "all", "orders")
        register_pipeline(engine, "fresh", "orders", "now")
        late.commit()
    assert counts(engine, "fresh") == (1, 0, 0, 0, True)
    assert counts(engine, "all") == (4, 0, 0, 0, True)
    # when it handles what came since, and one of the skipped ones changes
    record(engine, "orders", "acme", "new", {})
    record(engine, "orders", "acme", "a", {"changed": True})
    assert sorted(batch(engine, "fresh", "orders")) == ["a", "late", "new"]
    # then these three alone are handled
    assert counts(engine, "fresh") == (0, 3, 0, 0, True)
    assert counts(engine, "fresh", most=2) == (0, 2, 0, 0, True)
    put_in_quarantine(engine, "acme", "new", pipeline="fresh")
    put_in_quarantine(engine, "acme", "late", pipeline="fresh", discarded_at=datetime.now(UTC))
    record(engine, "orders", "acme", "newest", {})
    assert counts(engine, "fresh") == (1, 1, 1, 1, True)
    # and of a tenant all of whose records were skipped nothing is handled, but it is known
    assert counts(engine, "fresh", "bolt") == (0, 0, 0, 0, True)
    assert counts(engine, "all", "bolt") == (1, 0, 0, 0, True)


def test_nobody_knows_what_was_written_since_a_time_before_a_rebase(engine: Engine) -> None:
    record_many(engine, "orders", [("acme", "old", {}), ("acme", "young", {})])
    age(engine, "old", 9)
    with pytest.raises(InvalidPolicy, match=r"have been rebased since.*start='now'"):
        register_pipeline(engine, "since", "orders", datetime.now(UTC) - timedelta(days=5))
    assert rows(engine, "SELECT pipeline FROM taskbridge.pipelines") == []


def test_only_the_owner_gives_ids_and_transactions_to_records(engine: Engine) -> None:
    insert = "INSERT INTO taskbridge.records (id, source, tenant, key, revision, xid, document, reason) VALUES "
    ids = "SELECT key, id, revision, xid::text FROM taskbridge.records ORDER BY key"
    with engine.connect() as connection:
        execute = connection.exec_driver_sql
        execute(insert + "(1, 'orders', '', 'm', 1, '1', '1', 'why')")
        ours = execute(ids).one()
        execute("CREATE ROLE producer_of_a_test")
        execute("GRANT USAGE ON SCHEMA taskbridge TO producer_of_a_test")
        execute("GRANT SELECT, INSERT, UPDATE ON taskbridge.records TO producer_of_a_test")
        execute("SET LOCAL ROLE producer_of_a_test")
        execute("SET LOCAL taskbridge.keep_ids = 'on'")
        execute("UPDATE taskbridge.records SET xid = '9000000000000000000', id = 2, revision = 3 WHERE key = 'm'")
        execute(insert + "(7, 'orders', 'acme', 'a', 7, '7', '{}', NULL)")
        forged, unmatched = execute(ids).all()
        assert unmatched == ours
        assert forged.xid == ours.xid
        assert forged.id > ours.id
        assert forged.revision > ours.revision
        execute("RESET ROLE")
        execute(insert + "(8, 'orders', 'acme', 'b', 8, '8', '{}', NULL)")
        assert tuple(execute(ids).all()[1]) == ("b", 8, 8, "8")


@pytest.mark.parametrize("start", ["yesterday", datetime(2026, 1, 1), 7])  # noqa: DTZ001 - without a time zone
def test_a_start_that_says_nothing_is_refused(start: Any) -> None:
    with pytest.raises(InvalidPolicy, match="give 'everything', 'now' or a datetime with a time zone"):
        Pipeline("ship", print, LatencyNeutral(), 1, start=start)


def test_a_host_sees_nothing_of_ours_and_its_own_tables_are_left_alone(engine: Engine) -> None:
    theirs = MetaData()
    Table("invoices", theirs, Column("id", Integer, primary_key=True))
    Table("records", theirs, Column("id", Integer, primary_key=True))
    theirs.create_all(engine)
    run(engine, "INSERT INTO invoices VALUES (1)")
    migrate(engine, "base")
    migrate(engine)
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), theirs) == []
        assert connection.exec_driver_sql("SELECT id FROM invoices").scalar_one() == 1


def test_a_writer_s_search_path_changes_nothing_of_what_is_stamped_and_refused(engine: Engine) -> None:
    insert = "INSERT INTO taskbridge.records (source, tenant, key, document) VALUES "
    with engine.connect() as connection:
        execute = connection.exec_driver_sql
        execute("CREATE SCHEMA theirs")
        for kind in ("text", "integer"):
            execute(f"CREATE FUNCTION theirs.never({kind}, {kind}) RETURNS boolean LANGUAGE sql RETURN false")
            for sign in ("=", "<>", ">", "<", "~", "!~"):
                execute(f"CREATE OPERATOR theirs.{sign} (FUNCTION = theirs.never, LEFTARG = {kind}, RIGHTARG = {kind})")
        execute("CREATE FUNCTION theirs.pg_current_xact_id() RETURNS xid8 LANGUAGE sql RETURN '7'::xid8")
        execute("CREATE FUNCTION theirs.clock_timestamp() RETURNS timestamptz LANGUAGE sql RETURN 'epoch'::timestamptz")
        execute("SET LOCAL search_path = theirs, pg_catalog")
        execute(f"{insert} ('orders', 'acme', '1', '{{}}')")
        stamped = "SELECT xid = pg_catalog.pg_current_xact_id(), id, revision FROM taskbridge.records"
        execute("SET LOCAL search_path = pg_catalog")
        ours, number, revision = execute(stamped).one()
        assert ours
        assert number > revision > 1_000_000_000_000_000
        for values, why in (
            ("'Orders', 'acme', '2', '{}'", "the source 'Orders' is not allowed"),
            ("'orders', ' acme', '2', '{}'", "begins or ends with space"),
            ("'orders', 'acme', '', '{}'", "the key '' is not allowed"),
            ("'orders', 'acme', '2', '[]'", "the document is no JSON object"),
        ):
            execute("SET LOCAL search_path = theirs, pg_catalog")
            with pytest.raises(DataError, match=why), connection.begin_nested():
                execute(f"{insert} ({values})")
