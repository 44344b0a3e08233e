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
from tests.store.adopting import rows

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
    assert rows(engine, "SELECT FROM taskbridge.records") == []


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
        stored = f"SELECT document FROM taskbridge.records WHERE key = '{number}'"  # noqa: S608 - a number
        assert rows(engine, stored) == [({"lines": [{"n": 1}]},)]
        assert record_invoice(engine, "acme", str(number), {"lines": [{"n": 1}]}) is False
