"""For how long a recovery may wait for a slot, and no longer: the harness must not excuse a tenant that is starved."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from verification.torture.kinds import PIPELINES, by_pipeline, kind_of, pipeline_of, tenant_named
from verification.torture.ledger import Delivery, Ledger
from verification.torture.producer import LONGEST_CALL
from verification.torture.strikes_cursors import held_by_locks
from verification.torture.workers import Look, longest_full

SLOTS = {"w1": 3, "w2": 3, "w3": 1}
EVERY = 0.1
ANY = 1000.0


def looks(since: float, until: float, slots: dict[str, int] = SLOTS) -> list[Look]:
    return [Look(since + number * EVERY, EVERY, slots) for number in range(round((until - since) / EVERY) + 1)]


def call(worker: str, began: float, left: float | None) -> Delivery:
    return Delivery(worker, "token", 0, 0, [], began, left, left)


def in_each_slot(began: float, left: float | None) -> list[Delivery]:
    return [call(worker, began, left) for worker, count in SLOTS.items() for _ in range(count)]


def test_calls_that_were_under_way_when_the_run_became_due_are_an_excuse_until_the_first_slot_comes_free() -> None:
    # It became due at 1.5 and began at 3.2, when the first slot came free; the others are still in their calls.
    calls = [*in_each_slot(1.25, None)[1:], call("w1", 1.2, 3.2)]

    assert longest_full(looks(1.5, 3.2), calls, 1.5) == pytest.approx(1.7, abs=2 * EVERY)


def test_slots_that_come_free_and_are_given_to_others_are_no_excuse() -> None:
    calls = [one for number in range(100) for one in in_each_slot(number * 1.05, number * 1.05 + 1.04)]

    assert longest_full(looks(0.0, 100.0), calls, ANY) <= 1.04 + EVERY
    assert longest_full(looks(0.9, 100.0), calls, 0.9) <= 0.14 + EVERY


def test_calls_that_take_longer_than_any_that_is_drawn_are_no_excuse_after_that() -> None:
    assert longest_full(looks(0.0, 60.0), in_each_slot(0.0, 60.0), ANY) == LONGEST_CALL


def test_a_worker_that_becomes_ready_has_free_slots() -> None:
    seen = [*looks(0.1, 0.5), *looks(0.6, 1.9, {**SLOTS, "w4": 1})]

    assert longest_full(seen, in_each_slot(0.0, 2.0), ANY) == pytest.approx(0.5, abs=EVERY)


def test_a_call_whose_process_was_killed_ends_unseen() -> None:
    unseen = [call("w1", 0.0, None) for _ in range(3)]
    others = [call(worker, began, began + 1.9) for began in (1.0, 2.9) for worker in ("w2", "w2", "w2", "w3")]

    assert longest_full(looks(1.1, 4.8), [*unseen, *others], ANY) == pytest.approx(LONGEST_CALL - 1.1, abs=2 * EVERY)


def test_seconds_with_one_worker_are_not_counted_twice() -> None:
    seen = [*looks(0.1, 0.5), *looks(0.6, 1.4, {"w1": 3}), *looks(1.5, 1.9)]

    assert longest_full(seen, in_each_slot(0.0, 2.0), ANY) == pytest.approx(1.0, abs=EVERY)


def test_where_the_supervisor_did_not_look_there_is_no_excuse() -> None:
    assert longest_full([], in_each_slot(0.0, 2.0), ANY) == 0.0


def test_a_call_is_over_when_its_handler_raised(tmp_path: Path) -> None:
    ledger = written(tmp_path, began(0, 1.0), {"what": "left", "call": 0, "at": 1.5})

    (delivery,) = ledger.of("t")

    assert (delivery.ended, delivery.left) == (None, 1.5)
    assert ledger.between(1.4, 9.0) == [delivery]
    assert ledger.between(1.6, 9.0) == []


def test_a_call_that_goes_on_after_its_time_limit_is_told_from_the_next_one_of_its_run(tmp_path: Path) -> None:
    ended = [{"what": what, "call": call, "at": call + 5.0} for call in (1, 0) for what in ("ended", "left")]

    ledger = written(tmp_path, began(0, 1.0), began(1, 2.0), *ended)

    assert [(one.began, one.ended, one.left) for one in ledger.of("t")] == [(1.0, 5.0, 5.0), (2.0, 6.0, 6.0)]


def test_how_often_a_parcel_was_delivered_is_in_the_ledger(tmp_path: Path) -> None:
    ended = {"what": "ended", "at": 2.0, "parcels": [["a", 1]]}

    ledger = written(tmp_path, began(0, 1.0), {**ended, "call": 0}, began(1, 1.0), {**ended, "call": 1})
    ledger.read()

    assert ledger.parcels == [("t", "a", 1, "k")] * 2
    assert ledger.parcel_ends == {("t", "a", 1): 2}


def test_a_tenant_belongs_to_the_pipeline_that_it_is_named_for_and_no_name_begins_with_another() -> None:
    named = {tenant_named("s1-witness", number, kind_of(number)): kind_of(number) for number in range(1200)}

    assert {name: pipeline_of(name) for name in named} == named
    assert [*by_pipeline([*named])] == [*PIPELINES]
    assert [len(those) for those in by_pipeline([*named]).values()] == [600, 600]
    names = sorted(named)
    assert not any(later.startswith(name) for name, later in pairwise(names))


def test_few_locked_cursors_hold_up_others_for_less_than_the_lock_and_more_for_longer() -> None:
    assert held_by_locks(1, 3.0) == pytest.approx(0.3)
    assert held_by_locks(2, 3.0) == pytest.approx(0.4)
    assert held_by_locks(3, 3.0) == pytest.approx(0.5 + 3.0 + 1.0)


def began(call: int, at: float) -> dict[str, Any]:
    known = {"position": 0, "session": 1, "records": [["a", 1]], "versions": [1]}
    return {"what": "began", "call": call, "at": at, **known}


def written(books: Path, *lines: dict[str, Any]) -> Ledger:
    whose = {"worker": "w1", "tenant": "t", "token": "k"}
    (books / "w1-1.jsonl").write_text("".join(json.dumps({**whose, **line}) + "\n" for line in lines))
    return Ledger(books)
