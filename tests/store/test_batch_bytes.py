"""A batch is limited in bytes, so that a worker's memory is: large documents are fetched in slices."""

from __future__ import annotations

import os

import pytest
from sqlalchemy import Engine

from taskbridge.store import Cursors, Page, record_invoice
from tests.store.sweeping import claim, key, sweep

LARGE = 200_000
MOST = 1_000_000


def write(engine: Engine, *texts: str) -> None:
    with engine.begin() as connection:
        for at, text in enumerate(texts):
            record_invoice(engine, "acme", f"{at:03}", {"text": text}, connection=connection)


def numbers(*pages: Page) -> list[str]:
    return [record.external_id for page in pages for record in page.records]


@pytest.mark.parametrize("stored", ["as it is", "compressed"])
def test_a_batch_of_large_documents_ends_at_its_bytes_and_every_record_comes_once(engine: Engine, stored: str) -> None:
    texts = [os.urandom(LARGE // 2).hex() if stored == "as it is" else "x" * LARGE for _ in range(60)]
    write(engine, *texts)
    pages = sweep(Cursors(engine, batch_bytes=MOST))
    assert numbers(*pages) == [f"{at:03}" for at in range(60)]
    assert [record.document["text"] for page in pages for record in page.records] == texts
    if stored == "as it is":
        most = max(sum(len(record.document["text"]) for record in page.records) for page in pages)
        assert most <= MOST + 8 * LARGE, "the limit and a slice"


def test_a_document_larger_than_a_batch_may_be_comes_with_the_small_ones_before_it(engine: Engine) -> None:
    write(engine, "a", os.urandom(3_000_000).hex(), "b", os.urandom(3_000_000).hex(), "c")
    pages = sweep(Cursors(engine, batch_bytes=1))
    assert [numbers(page) for page in pages] == [["000", "001"], ["002", "003"], ["004"]]


def test_a_large_document_that_changes_while_it_is_fetched_comes_as_it_is_then(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(engine, "y" * LARGE)
    cursors = Cursors(engine)
    fetch = cursors._with_documents

    def change_before(*what: object) -> object:
        monkeypatch.undo()
        write(engine, "z" * LARGE)
        return fetch(*what)  # type: ignore[arg-type]

    monkeypatch.setattr(cursors, "_with_documents", change_before)
    first = claim(cursors)
    assert (first.records, first.finished) == ((), False)
    again = cursors.read(key(), 500)
    assert [record.document["text"][0] for record in again.records] == ["z"]
