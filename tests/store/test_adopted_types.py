"""Each value of a type that tenant and key may have is one text, whatever the settings of who writes and who reads."""

# ruff: noqa: S608 - our own tables

from __future__ import annotations

import pytest
from sqlalchemy import Engine

from taskbridge.store import Unread, adopt, adoption, backfill, begin_again
from tests.store.adopting import Reader, adopted, run

SETTINGS = {
    "plain": (),
    "Apia": ("SET TimeZone = 'Pacific/Apia'", "SET DateStyle = 'SQL, DMY'"),
    "Paris of old": ("SET TimeZone = 'Europe/Paris'", "SET DateStyle = 'German'", "SET IntervalStyle = 'iso_8601'"),
    "far": ("SET TimeZone = '<+1559>-15:59'", "SET extra_float_digits = -15", "SET bytea_output = 'escape'"),
    "west": ("SET TimeZone = '<-1559>+15:59'", "SET DateStyle = 'Postgres, MDY'", "SET quote_all_identifiers = on"),
}
DATES = (
    "2011-12-30",
    "1911-03-11",
    "294277-01-01",
    "5874897-12-31",
    "4714-11-24 BC",
    "0001-12-31 BC",
    "infinity",
    "-infinity",
)
VALUES = {
    "date": {one: one for one in DATES},
    "timestamp": {
        "2011-12-30 00:00": "2011-12-30T00:00:00.000000",
        "294276-12-31 23:59:59.999999": "294276-12-31T23:59:59.999999",
        "4714-11-24 00:00 BC": "4714-11-24T00:00:00.000000 BC",
        "infinity": "infinity",
    },
    "timestamptz": {
        "2011-12-30 10:00+00": "2011-12-30T10:00:00.000000Z",
        "1911-03-10 23:51:39+00": "1911-03-10T23:51:39.000000Z",
        "294276-12-31 23:59:59.999999+00": "294276-12-31T23:59:59.999999Z",
        "4714-11-24 00:00+00 BC": "4714-11-24T00:00:00.000000Z BC",
        "-infinity": "-infinity",
    },
    "numeric": {"NaN": "NaN", "1e-5": "0.00001", "-0.0": "0.0", "Infinity": "Infinity", "1e30": "1" + "0" * 30},
    "bigint": {"-9223372036854775808": "-9223372036854775808"},
    "uuid": {"{A0EEBC99-9C0B4EF8-BB6D6BB9-BD380A11}": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"},
    "boolean": {"yes": "true", "off": "false"},
    "char(9)": {"a b ": "a b"},
    "text": {"ü'\\\"%s$1": "ü'\\\"%s$1", "null": "null", "[1]": "[1]"},
    "mood": {"so so": "so so", "1": "1"},
}


@pytest.mark.parametrize("kind", VALUES)
def test_a_value_is_delivered_once_under_its_text_and_deleted_under_it(engine: Engine, kind: str) -> None:
    texts = VALUES[kind]
    run(
        engine,
        "CREATE TYPE mood AS ENUM ('so so', '1')",
        *(
            f"CREATE TABLE {table} (k {kind}, at int, customer {kind}, PRIMARY KEY (k, at))"
            + (" PARTITION BY RANGE (at)" if table == "parted" else "")
            for table in ("orders", "parted")
        ),
        "CREATE TABLE part PARTITION OF parted DEFAULT",
    )
    found = {table: adopted(engine, table, "customer", "k", "at") for table in ("orders", "parted")}
    values = ", ".join("'" + one.replace("'", "''") + "'" for one in texts)
    for at, settings in enumerate(SETTINGS.values()):
        with engine.begin() as writer:
            for one in settings:
                writer.exec_driver_sql(one.replace("SET ", "SET LOCAL "))
            for table in found:
                insert = f"INSERT INTO {table} SELECT v::{kind}, {at}, v::{kind} FROM unnest(ARRAY[{values}]) v"
                writer.exec_driver_sql(insert.replace("%", "%%"))

    for table, whole in found.items():
        for reading in list(SETTINGS.values())[1:3]:
            # Each connection from here on has these, as where somebody has set them for the database.
            run(engine, *(f'ALTER DATABASE "{engine.url.database}" {setting}' for setting in reading))
            engine.dispose()
            reader = Reader(engine, table, table)
            expected = {text: len(SETTINGS) for text in texts.values()}
            seen = {text: [got for got in reader.records(text) if not got.deleted] for text in expected}
            assert {text: len(records) for text, records in seen.items()} == expected
            begin_again(engine, table)
            assert list(backfill(engine, whole, 3))[-1].rows == len(texts) * len(SETTINGS)
            assert {text: len(reader.records(text)) for text in expected} == expected
            run(engine, f"DELETE FROM {table} WHERE at >= 0")
            gone = {text: [got for got in reader.records(text) if got.deleted] for text in expected}
            assert {text: len(records) for text, records in gone.items()} == expected
            places = f"generate_series(0, {len(SETTINGS) - 1}) n"
            run(engine, f"INSERT INTO {table} SELECT v::{kind}, n, v::{kind} FROM unnest(ARRAY[{values}]) v, {places}")


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        ("numeric(10, 0)", "numeric(12, 2)", "numeric(,0) to numeric(,2)"),
        ("numeric", "numeric(12, 1)", "numeric to numeric(,1)"),
        ("timestamptz", "timestamptz(0)", "timestamptz to timestamptz(0)"),
        ("numeric(10, 0)", "numeric(20, 0)", None),
        ("varchar(10)", "varchar(20)", None),
    ],
)
def test_nothing_is_delivered_as_deleted_after_a_column_s_digits_have_changed(
    engine: Engine, before: str, after: str, text: str | None
) -> None:
    value = "2026-01-01 00:00:00.4Z" if "time" in before else "7"
    run(engine, f"CREATE TABLE orders (id {before} PRIMARY KEY, customer text)")
    adopted(engine)
    reader = Reader(engine)
    run(engine, f"INSERT INTO orders VALUES ('{value}', 'acme')", f"ALTER TABLE orders ALTER id TYPE {after}")
    if text is None:
        assert [one.deleted for one in reader.records("acme")] == [False]
        return
    with pytest.raises(Unread, match="is stopped") as failure:
        reader.records("acme")
    assert text in str(failure.value)
    found = adoption(engine, "orders", "customer", ["id"], other_keys=True)
    adopt(engine, found)
    assert list(backfill(engine, found))[-1].again
    assert sorted(one.deleted for one in reader.records("acme")) == [False, True]
