"""Every state of the protocol under one kind of fault after another, and the bugs that the search must notice.

If the reconciler is switched off, the gate and the poller alone must bring the work to its end. Searches that take
longer have the mark `search`: `make search` runs them.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from verification.model.transitions import Verb

from .protocol import SETTLES, Breach, Faults, Guards, is_handled
from .search import EVERY_GUARD, search

NO_RECONCILER = Guards(reconciles=False)
OLDER = frozenset({Breach.TWO_RUNS})
"""A Redis that comes back older may let two runs in; it is Postgres that lets one of them advance."""


def found(records: int, faults: Faults, guards: Guards = EVERY_GUARD, **bounds: Any) -> str:
    """What a search finds wrong; the way to it is printed, and how many states there are."""
    finding = search(records, faults, guards, **bounds)
    print(finding)  # noqa: T201 - pytest shows it with -s, and whenever a test fails
    return finding.wrong


def case(name: str, records: int, faults: Faults, *, large: bool = False, **bounds: Any) -> Any:
    marks = [pytest.mark.search, pytest.mark.timeout(3600)] if large else []
    return pytest.param(records, faults, bounds, id=name, marks=marks)


def longer(name: str, records: int, faults: Faults, **bounds: Any) -> Any:
    return pytest.param(records, faults, bounds, id=name, marks=[pytest.mark.slow])


def larger(name: str, records: int, faults: Faults, **bounds: Any) -> Any:
    return case(name, records, faults, large=True, **bounds)


@pytest.mark.parametrize(
    ("records", "faults", "bounds"),
    [
        case("nothing goes wrong", 1, Faults()),
        longer("two records", 2, Faults(), workers=1),
        case("two records, one event", 2, Faults(), workers=1, events=1),
        longer("a worker, a pass and a message are lost", 1, Faults(1, pass_dies=1, message_lost=1), workers=1),
        case("workers die and a message is lost", 1, Faults(worker_dies=2, message_lost=1), workers=1),
        longer("a message is doubled", 1, Faults(message_doubled=1)),
        case("a handler fails, and a worker", 1, Faults(handler_fails=1, worker_dies=1), workers=1),
        larger("a run is postponed, two records", 2, Faults(postponed=1), workers=1, events=1),
        case("runs are postponed", 1, Faults(postponed=2), workers=1),
        larger("a run is postponed among others", 1, Faults(postponed=1, worker_dies=1, message_lost=1), workers=1),
        case("a run is started without news", 1, Faults(started_early=1), workers=1),
        case("passes overlap", 1, Faults(), workers=1, lookers=2),
        case("the clock steps back", 1, Faults(clock_steps=1), events=0),
        larger("two records, two runs", 2, Faults()),
        larger("three records", 3, Faults(), workers=1, events=1),
        larger("passes overlap and die, and workers", 1, Faults(pass_dies=1, worker_dies=1), lookers=2),
        larger("two records, passes overlap", 2, Faults(), workers=1, lookers=2),
        larger("the clock steps back, and faults", 1, Faults(clock_steps=1, worker_dies=1, message_doubled=1)),
        larger("much at once", 1, Faults(1, 1, 1, 1, 1, postponed=1)),
    ],
)
def test_the_gate_and_the_poller_lose_no_record_whether_or_not_anybody_notifies(
    records: int, faults: Faults, bounds: dict[str, Any]
) -> None:
    assert found(records, faults, NO_RECONCILER, **bounds) == ""


@pytest.mark.parametrize(
    ("records", "faults", "bounds"),
    [
        case("nothing goes wrong", 1, Faults(), workers=1),
        longer("Redis is lost", 1, Faults(redis_lost=1), workers=1),
        case("Redis is lost, no events", 1, Faults(redis_lost=1), workers=1, events=0),
        longer("Redis comes back older", 1, Faults(redis_rewinds=1), workers=1, events=0, tolerated=OLDER),
        longer("the runner's hash is lost", 1, Faults(hash_lost=1), workers=1),
        case("the runner's hash is lost, no events", 1, Faults(hash_lost=1), workers=1, events=0),
        case("a record is tried again, the cursor begins anew", 1, Faults(retried=1, reset=1), workers=1, events=0),
        longer("the tenant is paused", 1, Faults(paused=1), workers=1),
        case("the tenant is paused, no events", 1, Faults(paused=1), workers=1, events=0),
        longer("the tenant is paused twice, and Redis is lost", 1, Faults(redis_lost=1, paused=2), workers=1),
        larger("Redis is lost, two runs", 1, Faults(redis_lost=1)),
        larger("Redis is lost twice, and a worker dies", 1, Faults(1, redis_lost=2), workers=1),
        larger("Redis is lost, two records", 2, Faults(redis_lost=1), workers=1, events=1),
        larger("Redis comes back older, with events", 1, Faults(redis_rewinds=1), workers=1, tolerated=OLDER),
        larger("Redis comes back older, a worker dies", 1, Faults(1, redis_rewinds=1), events=0, tolerated=OLDER),
        larger("passes overlap", 1, Faults(redis_lost=1), workers=1, lookers=2),
    ],
)
def test_the_base_finds_what_a_lost_redis_forgot(records: int, faults: Faults, bounds: dict[str, Any]) -> None:
    assert found(records, faults, **bounds) == ""


def test_a_lost_deadline_loses_no_record() -> None:
    assert found(1, Faults(deadline_lost=1), workers=1, is_end=is_handled) == ""


def test_a_lost_deadline_leaves_the_hash_of_a_tenant_that_has_nothing_pending_until_its_next_event() -> None:
    finding = search(1, Faults(deadline_lost=1), workers=1)

    assert "leaves a record or a key behind" in finding.wrong
    assert "gate waiting" in "".join(finding.trace)


def test_an_event_in_the_middle_of_a_sweep_that_the_next_run_resumes_is_not_forgotten() -> None:
    assert found(3, Faults(), Guards(polls=False, reconciles=False, needs_events=True), workers=1) == ""


@pytest.mark.parametrize("events", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_settle_that_is_sent_again_after_a_lost_reply_ends_nobody_elses_run(events: int) -> None:
    assert found(1, Faults(reply_lost=1), NO_RECONCILER, events=events) == ""


# Bugs, each a guard that is switched off. The search must notice.


BREACHES = [
    ("advance_checks_owner", Faults(), Breach.NOT_OWNER, frozenset[Breach]()),
    ("begin_checks_token", Faults(message_doubled=1), Breach.TWO_RUNS, frozenset[Breach]()),
    ("begin_knows_its_caller", Faults(message_doubled=1), Breach.TWO_RUNS, frozenset[Breach]()),
    ("claim_refuses_lower_tokens", Faults(), Breach.OVERTAKEN, frozenset[Breach]()),
    ("token_per_run", Faults(reply_lost=1), Breach.TWO_RUNS, frozenset[Breach]()),
    ("advance_checks_position", Faults(redis_rewinds=1), Breach.SAME_POSITION, OLDER),
]


@pytest.mark.parametrize(("guard", "faults", "breach", "tolerated"), BREACHES, ids=[row[0] for row in BREACHES])
def test_the_search_finds_a_missing_check_of_tokens_or_of_the_cursor(
    guard: str, faults: Faults, breach: Breach, tolerated: frozenset[Breach]
) -> None:
    guards = Guards(**{guard: False, "polls": False})

    assert found(1, faults, guards, tolerated=tolerated) == f"I1: {breach.value}"


ONE = {"workers": 1}
NO_POLLER = {"reconciles": False, "polls": False, "needs_events": True}
# What is switched off, besides what else, and what it takes to notice.
LOSSES: list[tuple[str, dict[str, bool], int, Faults, dict[str, Any]]] = [
    ("settle_counts_events", NO_POLLER, 2, Faults(), ONE),
    ("done_after_own_sweep", NO_POLLER, 3, Faults(), ONE),
    ("queued_has_deadline", {"reconciles": False}, 1, Faults(message_lost=1), ONE),
    ("postponed_has_deadline", {"reconciles": False}, 1, Faults(postponed=1), ONE),
    ("asks_the_queue", {"reconciles": False}, 1, Faults(message_lost=1), ONE),
    ("end_counts_events", {"reconciles": False}, 2, Faults(), ONE),
    ("end_spares_held", {"reconciles": False}, 1, Faults(handler_fails=1), ONE),
    ("remind_counts_lingering", {"reconciles": False}, 2, Faults(), ONE),
    ("remind_counts_running", {"reconciles": False}, 1, Faults(), ONE),
    ("remind_adopts", {}, 1, Faults(deadline_lost=1, handler_fails=1), ONE | {"is_end": is_handled, "events": 0}),
    ("remind_ends_pause", {}, 1, Faults(paused=1), ONE),
    ("polls", {"reconciles": False}, 1, Faults(), ONE),
    ("poller_reminds_first", {"reconciles": False}, 1, Faults(pass_dies=1), ONE),
    ("poller_takes_snapshot_first", {"reconciles": False}, 2, Faults(), ONE),
    ("poller_stores_a_snapshot", {"reconciles": False}, 2, Faults(), ONE | {"events": 0}),
    ("reconciles", {}, 1, Faults(redis_lost=1), ONE),
    ("reconciles", {}, 1, Faults(redis_rewinds=1), ONE | {"tolerated": OLDER, "events": 0}),
    ("stores_where_it_read", {"reconciles": False}, 1, Faults(reset=1), ONE | {"events": 0}),
    ("reconciler_takes_snapshot_first", {"polls": False}, 2, Faults(), ONE | {"events": 0}),
    ("reconciler_leaves_out_pending", {}, 1, Faults(redis_lost=1), ONE | {"events": 0}),
    ("reconciler_asks_the_cursor", {}, 2, Faults(redis_lost=1), ONE | {"events": 0}),
    ("reconciler_finds_retries", {}, 1, Faults(retried=1), ONE),
    ("reset_forgets_snapshots", {}, 1, Faults(reset=1), ONE | {"events": 0}),
]


LONGEST = {"reconciler_asks_the_cursor", "remind_counts_lingering", "end_counts_events", "poller_takes_snapshot_first"}


@pytest.mark.parametrize(
    ("guard", "others", "records", "faults", "bounds"),
    [
        pytest.param(*row, id=f"{at} {row[0]}", marks=[pytest.mark.slow] if row[0] in LONGEST else [])
        for at, row in enumerate(LOSSES)
    ],
)
def test_the_search_finds_a_record_that_nobody_would_come_for(
    guard: str, others: dict[str, bool], records: int, faults: Faults, bounds: dict[str, Any]
) -> None:
    assert found(records, faults, Guards(**{**others, guard: False}), **bounds).startswith("I3, I4:")


def test_every_guard_is_taken_out_once() -> None:
    guards = {field.name for field in fields(Guards)} - {"needs_events"}

    assert guards == {row[0] for row in (*BREACHES, *LOSSES)}


def test_the_shortest_trace_is_told_step_by_step() -> None:
    finding = search(1, Faults(), Guards(advance_checks_owner=False, polls=False))

    told = [line[: line.index("gate")].strip() for line in finding.trace]

    assert told == [
        "record 1 is committed",
        "an event: STARTED",
        "message 1 arrives: run 1 begins",
        "run 1 claims the cursor",
        "run 1 reads record 1",
        "the deadline passes: REISSUED",
        "message 2 arrives: run 2 begins",
        "run 2 claims the cursor",
        "run 1 advances",
    ]


def test_the_model_settles_with_every_outcome_of_the_table() -> None:
    assert set(SETTLES.values()) == {verb for verb in Verb if verb.value.startswith("settle: ")}
