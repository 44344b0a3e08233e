"""Invoices are written whole or not at all, and only when they changed."""

from __future__ import annotations

from collections import ChainMap, OrderedDict, UserDict
from decimal import Decimal
from types import MappingProxyType
from typing import Any
from unittest.mock import ANY

import pytest
from sqlalchemy import Engine

from taskbridge.declaring.batch import Record
from taskbridge.errors import InvalidInput, InvalidName
from taskbridge.store import record_invoice, record_many


def rows(engine: Engine) -> list[tuple[Any, ...]]:
    with engine.connect() as connection:
        found = connection.exec_driver_sql("SELECT tenant, key, revision, document FROM taskbridge.records ORDER BY id")
        return [tuple(row) for row in found]


def test_a_new_and_a_changed_invoice_say_so_and_an_unchanged_one_does_not(engine: Engine) -> None:
    assert record_invoice(engine, "acme", "1", {"total": "4.95"}) is True
    first = rows(engine)
    assert record_invoice(engine, "acme", "1", {"total": "4.95"}) is False
    assert rows(engine) == first
    assert record_invoice(engine, "acme", "1", {"total": "5.95"}) is True
    ((tenant, number, revision, document),) = rows(engine)
    assert (tenant, number, document) == ("acme", "1", {"total": "5.95"})
    assert revision > first[0][2]


def test_an_invoice_belongs_to_the_callers_transaction(engine: Engine) -> None:
    with engine.connect() as connection:
        record_invoice(engine, "acme", "1", {}, connection)
        connection.rollback()
    assert rows(engine) == []


@pytest.mark.parametrize("tenant", ["", "a" * 201, "a\nb", "a\x00b", " acme", "\u2028", "\ud800", 7, None])
def test_a_tenant_that_could_be_mistaken_is_refused(engine: Engine, tenant: Any) -> None:
    with pytest.raises(InvalidName):
        record_invoice(engine, tenant, "1", {})
    assert rows(engine) == []


@pytest.mark.parametrize("given", ["", "acme", b"acme", b""])
def test_one_text_is_no_list_of_rows(engine: Engine, given: Any) -> None:
    with pytest.raises(InvalidInput, match="pass a list"):
        record_many(engine, "invoices", given)


@pytest.mark.parametrize("row", ["abc", b"abc", ("a", "b"), 7])
def test_a_row_is_three_values_and_no_text(engine: Engine, row: Any) -> None:
    with pytest.raises(InvalidInput, match="row 2 is no"):
        record_many(engine, "invoices", [("acme", "1", {}), row])


@pytest.mark.parametrize("number", ["", "1" * 201, "1\n2", 7, None])
def test_a_number_that_could_be_mistaken_is_refused(engine: Engine, number: Any) -> None:
    with pytest.raises(InvalidInput, match="'acme'"):
        record_invoice(engine, "acme", number, {})
    assert rows(engine) == []


@pytest.mark.parametrize(
    "document",
    [
        pytest.param([1], id="no object"),
        pytest.param({"total": Decimal("1.5")}, id="a decimal"),
        pytest.param({"total": float("nan")}, id="NaN"),
        pytest.param({"text": "a\x00b"}, id="a NUL character"),
        pytest.param({"text": "a\\\x00b"}, id="a NUL character after a backslash"),
        pytest.param({"text": "\ud800"}, id="a lone surrogate"),
    ],
)
def test_a_document_that_jsonb_would_change_or_refuse_is_refused_with_its_place(engine: Engine, document: Any) -> None:
    with pytest.raises(InvalidInput, match="'acme', record '17'"):
        record_invoice(engine, "acme", "17", document)
    assert rows(engine) == []


def test_text_with_backslashes_and_percent_signs_is_kept(engine: Engine) -> None:
    document = {"text": "100 % \\u0000 %(tenant)s \\", "quote": "'\""}
    assert record_invoice(engine, "100%s", "%(number)s", document)
    assert rows(engine) == [("100%s", "%(number)s", ANY, document)]


def test_an_idempotency_key_is_stable_and_no_two_records_share_one() -> None:
    first = Record("invoices", "a", "b:1", 1, {})
    again = Record("invoices", "a", "b:1", 1, {"other": "document"})
    others = [
        Record("invoices", "a:b", "1", 1, {}),
        Record("invoices", "a", "b:1", 2, {}),
        Record("mirror", "a", "b:1", 1, {}),
        Record("invoices", "a", "b", 1, {}),
    ]
    assert first.idempotency_key == again.idempotency_key == "6293c31a-44aa-5908-9eea-9ceaa31db1a0"
    assert len({record.idempotency_key for record in [first, *others]}) == 5


@pytest.mark.parametrize("wrap", [MappingProxyType, UserDict, ChainMap, OrderedDict])
def test_any_mapping_is_a_document_also_inside_of_one(engine: Engine, wrap: Any) -> None:
    assert record_invoice(engine, "acme", "1", wrap({"lines": [wrap({"n": 1})]})) is True
    assert rows(engine)[0][3] == {"lines": [{"n": 1}]}
    assert record_invoice(engine, "acme", "1", {"lines": [{"n": 1}]}) is False
