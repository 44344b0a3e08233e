"""The figures of a pipeline are those of its records and runs, in the middle of a sweep and after each kind of end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import Engine

from taskbridge.common.run_key import RunKey
from taskbridge.store import (
    Backlog,
    Claim,
    Counters,
    CursorLost,
    Cursors,
    Page,
    Pauses,
    Quarantine,
    Quarantined,
    Tenants,
    read_backlogs,
    read_counters,
    record_invoice,
    register_pipeline,
)
from taskbridge.store.stats import MOST_RECORDS
from tests.quarantined import put_in_quarantine, states
from tests.store import sweeping
from tests.store.adopting import run
from tests.store.sweeping import write

NOT_YET: dict[str, Any] = {"events": 3, "runs": 1}


def look(
    engine: Engine, tenants: Sequence[str] = ("acme", "bolt"), most: int = MOST_RECORDS
) -> tuple[Counters, Backlog]:
    counters = read_counters(engine, ["invoices"])
    backlogs = read_backlogs(engine, {"invoices": "invoices"}, {"invoices": tenants}, most)
    return counters["invoices"], backlogs["invoices"]


def key(number: int, tenant: str = "acme") -> RunKey:
    return sweeping.key(tenant, f"{number:016d}-aaaaaaaaaaaa")


def advance(
    cursors: Cursors, key: RunKey, page: Page, quarantined: Quarantined | None = None, ms: int | None = None
) -> None:
    with cursors.transaction(key) as transaction:
        transaction.advance(transaction.move(page, to_quarantine=quarantined, first_event_ms=ms))


def test_pending_is_what_the_view_says_at_each_step(engine: Engine) -> None:
    register_pipeline(engine, "invoices", "invoices")
    cursors = Cursors(engine)
    write(engine, *"01234")
    write(engine, "1", tenant="bolt")

    def agree() -> int:
        expected = Counter(states(engine).values())["pending"]
        assert look(engine)[1].pending == expected
        return expected

    assert agree() == 6
    # a paused tenant is counted without being listed
    pauses = Pauses(engine)
    pauses.pause("invoices", "bolt")
    assert look(engine, ["acme"])[1].pending == 6
    pauses.release("invoices", "bolt")
    # in the middle of a sweep, while one comes that is not of it
    page = cursors.claim(Claim(key(1), 2, **NOT_YET))
    advance(cursors, key(1), page)
    record_invoice(engine, "acme", "late", {})
    assert agree() == 5
    # with one in quarantine that somebody wants tried again, the first of its sweep's rest
    put_in_quarantine(engine, "acme", "0")
    assert look(engine)[1].quarantined == 1
    run(engine, "UPDATE taskbridge.quarantine SET retry_at = now()")
    assert look(engine)[1].quarantined == 0
    assert agree() == 6
    # and at the end of the sweep, of the next, and after a change
    while (page := cursors.read(key(1), 2)).moves_cursor:
        advance(cursors, key(1), page)
        agree()
    assert agree() == 1
    record_invoice(engine, "acme", "3", {"version": 2})
    assert agree() == 2
    assert look(engine, ["acme"])[1].pending == 1


def test_counters_grow_with_bursts_failures_and_first_events(engine: Engine) -> None:
    cursors = Cursors(engine)
    for tenant in ("acme", "bolt"):
        write(engine, *"012", tenant=tenant)
    # given a burst of two runs, whose first batch has one record put into quarantine, and a burst that fails twice
    page = cursors.claim(Claim(key(1), 2, **NOT_YET))
    advance(cursors, key(1), page, Quarantined({"0": "no"}, "rejected"), ms=7)
    for _ in range(2):  # a run may claim twice, and counts once
        page = cursors.claim(Claim(key(2), 2, events=4, runs=2, burst=key(1).token))
    advance(cursors, key(2), page)
    for number, runs in ((3, 1), (4, 2)):
        cursors.claim(Claim(key(number, "bolt"), 2, events=1, runs=runs, burst=key(3).token))
        cursors.fail(key(number, "bolt"), "ValueError: no")
    with pytest.raises(CursorLost):
        cursors.fail(key(1, "bolt"), "of a run that was replaced")
    # and later a burst of each
    advance(cursors, key(5), cursors.claim(Claim(key(5), 2, events=1, runs=1)), ms=30_000)
    one, _ = look(engine)
    assert one[:-1] == (6, 3, 0, 5, 3, 3, 2)
    assert look(engine)[1].failing == 1
    assert (one.first_events.counts, one.first_events.sum_ms) == ([0, 1, *[0] * 9, 1], 30_007)
    # and a success ends the failing
    advance(cursors, key(6, "bolt"), cursors.claim(Claim(key(6, "bolt"), 5, events=1, runs=3, burst=key(3).token)))
    assert look(engine)[1].failing == 0


def test_the_age_is_that_of_the_oldest_and_a_change_makes_a_record_young(engine: Engine) -> None:
    cursors = Cursors(engine)
    write(engine, "1", "2")
    run(
        engine,
        "SET LOCAL taskbridge.keep_ids = 'on'; "
        "UPDATE taskbridge.records SET changed_at = now() - (1500 - 500 * key::int) * interval '1 s'",
    )
    assert 1_000 <= look(engine)[1].oldest_seconds < 1_100
    advance(cursors, key(1), cursors.claim(Claim(key(1), 1, **NOT_YET)))
    assert 500 <= look(engine)[1].oldest_seconds < 600
    advance(cursors, key(1), cursors.read(key(1), 5))
    record_invoice(engine, "acme", "1", {"version": 2})
    assert 0 <= look(engine)[1].oldest_seconds < 100


def test_a_drain_waits_for_what_is_left_of_a_sweep_and_what_is_tried_again_and_for_nothing_later(
    engine: Engine,
) -> None:
    register_pipeline(engine, "invoices", "invoices")
    cursors, quarantine = Cursors(engine), Quarantine(engine)
    with engine.connect() as late:
        record_invoice(engine, "acme", "late", {}, late)
        write(engine, *"abc")
        assert sweeping.batch(cursors, limit=2) == ["a", "b"]
        late.commit()
    # `late` has a lower transaction id than where the sweep stands, and is not part of it.
    snapshot = Pauses(engine).snapshot()
    write(engine, "later")

    def left() -> int:
        return Tenants(engine, "invoices").pending_before("invoices", ["acme", "nobody"], snapshot).get("acme", 0)

    for batch, then in ((["c"], 1), (["late", "later"], 0)):
        assert left() == then + 1
        assert sweeping.batch(cursors, limit=2) == batch
        assert left() == then
    put_in_quarantine(engine, "acme", "a", "b")
    assert left() == 0
    quarantine.retry("invoices", quarantine.find("invoices", external_ids=["a"])[0])
    assert left() == 1
    quarantine.discard("invoices", quarantine.find("invoices")[0])
    assert left() == 0
