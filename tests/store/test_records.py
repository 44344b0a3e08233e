"""Invoices are written whole or not at all, and only when they changed."""

from __future__ import annotations

from collections import ChainMap, OrderedDict, UserDict
from decimal import Decimal
from types import MappingProxyType
from typing import Any

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


TENANTS: list[Any] = ["", "a" * 201, "a\nb", "a\x00b", " acme", "\u2028", "\ud800", 7, None]
NUMBERS: list[Any] = ["", "1" * 201, "1\n2", 7, None]
DOCUMENTS: dict[str, Any] = {
    "no object": [1],
    "a decimal": {"total": Decimal("1.5")},
    "NaN": {"total": float("nan")},
    "a NUL character": {"text": "a\x00b"},
    "a NUL character after a backslash": {"text": "a\\\x00b"},
    "a lone surrogate": {"text": "\ud800"},
}
ROWS: list[Any] = ["abc", b"abc", ("a", "b"), 7]
NO_LISTS: list[Any] = ["", "acme", b"acme", b""]


def test_what_could_be_mistaken_or_would_be_changed_is_refused_with_its_place(engine: Engine) -> None:
    for tenant in TENANTS:
        with pytest.raises(InvalidName):
            record_invoice(engine, tenant, "1", {})
    for number in NUMBERS:
        with pytest.raises(InvalidInput, match="'acme'"):
            record_invoice(engine, "acme", number, {})
    for document in DOCUMENTS.values():
        with pytest.raises(InvalidInput, match="'acme', record '17'"):
            record_invoice(engine, "acme", "17", document)
    for row in ROWS:
        with pytest.raises(InvalidInput, match="row 2 is no"):
            record_many(engine, "invoices", [("acme", "1", {}), row])
    for given in NO_LISTS:
        with pytest.raises(InvalidInput, match="pass a list"):
            record_many(engine, "invoices", given)
    assert rows(engine) == []


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


def test_any_mapping_is_a_document_also_inside_of_one(engine: Engine) -> None:
    wraps: list[Any] = [MappingProxyType, UserDict, ChainMap, OrderedDict]
    for number, wrap in enumerate(wraps):
        assert record_invoice(engine, "acme", str(number), wrap({"lines": [wrap({"n": 1})]})) is True
        assert rows(engine)[-1][3] == {"lines": [{"n": 1}]}
        assert record_invoice(engine, "acme", str(number), {"lines": [{"n": 1}]}) is False
