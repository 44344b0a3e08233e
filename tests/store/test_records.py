"""Records are written whole or not at all, and only triggers set their transaction ids and revisions.

So no caller makes a record pass for handled, or uses an idempotency key twice.
"""

from __future__ import annotations

from collections import ChainMap, OrderedDict, UserDict
from decimal import Decimal
from types import MappingProxyType
from typing import Any

import pytest
from sqlalchemy import Engine

from taskbridge.declaring.batch import Record
from taskbridge.errors import InvalidInput, InvalidName
from taskbridge.store import Cursors, rebase, record_invoice, record_many
from tests.store.adopting import rows, run
from tests.store.sweeping import sweep, write

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


DELETE = "DELETE FROM taskbridge.records"
SAVE = "CREATE TABLE backup AS SELECT * FROM taskbridge.records"
COPY_BACK = "INSERT INTO taskbridge.records SELECT * FROM public.backup"


def handled(engine: Engine) -> list[Record]:
    """What a sweep delivers."""
    return [record for page in sweep(Cursors(engine)) for record in page.records]


def test_what_is_deleted_and_written_anew_or_copied_back_is_pending_under_a_new_key(engine: Engine) -> None:
    write(engine, "1")
    run(engine, SAVE)
    found = handled(engine)
    run(engine, DELETE, COPY_BACK)
    found += handled(engine)
    run(engine, DELETE)
    write(engine, "1")
    found += handled(engine)
    assert [record.document for record in found] == [{"version": 1}] * 3
    revisions = [record.revision for record in found]
    assert revisions == sorted(revisions)
    assert len({record.idempotency_key for record in found}) == 3


def test_rows_of_a_replica_have_this_clusters_ids_and_not_the_publishers(engine: Engine) -> None:
    # given rows of a publisher that counts fewer transactions: its ids lie before every cursor here
    write(engine, "1", "2")
    run(engine, SAVE, f"{DELETE} WHERE key = '1'", "UPDATE backup SET xid = '3'")
    handled(engine)
    # when they come as logical replication applies them
    changed = "UPDATE taskbridge.records SET recorded_at = recorded_at - interval '1 day', xid = '3' WHERE key = '2'"
    replica = "SET LOCAL session_replication_role = replica; SET LOCAL search_path = ''"
    run(engine, f"{replica}; {COPY_BACK} WHERE key = '1'; {changed}")
    # then both are pending
    assert sorted(record.external_id for record in handled(engine)) == ["1", "2"]
    assert rows(engine, "SELECT count(*) FROM taskbridge.records WHERE xid = '3'") == [(0,)]


def test_after_a_rebase_no_revision_repeats_that_was_given_after_the_dump(engine: Engine) -> None:
    # given a change after the dump, of which the restored database knows nothing
    write(engine, "1", "2")
    ((before,), (lost,)) = rows(engine, "SELECT revision FROM taskbridge.records ORDER BY key")
    run(engine, f"{DELETE} WHERE key = '2'", "UPDATE taskbridge.taskbridge_cluster SET system_identifier = 1")
    engine.dispose()
    assert rebase(engine)
    assert rows(engine, "SELECT revision FROM taskbridge.records") == [(before,)]
    record_invoice(engine, "acme", "1", {"version": 2})
    ((revision,),) = rows(engine, "SELECT revision FROM taskbridge.records")
    assert lost < revision < 2**53, "JSON's numbers hold it"
    # and the rebase's own right to set ids ended with it
    run(engine, "UPDATE taskbridge.records SET xid = '3', revision = 1")
    assert rows(engine, "SELECT revision > 1, xid > '3' FROM taskbridge.records") == [(True, True)]
