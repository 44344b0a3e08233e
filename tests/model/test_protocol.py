"""Every state of the protocol under one kind of fault after another, and the bugs that the search must notice.

Where reconcile is switched off, the gate alone must bring the work to its end: within seconds, not half a minute.
"""

from __future__ import annotations

import pytest

from taskbridge.gate.transitions import Verb

from .protocol import SETTLES, Breach, Faults, Guards, is_handled
from .search import Finding, search

WITHOUT_RECONCILE = Guards(reconciles=False)


def report(finding: Finding) -> None:
    print(finding)  # noqa: T201 - pytest shows it with -s, and whenever a test fails


@pytest.mark.parametrize(
    ("records", "faults"),
    [
        pytest.param(2, Faults(), id="nothing goes wrong"),
        pytest.param(2, Faults(worker_dies=1, message_doubled=1), id="a worker dies and a message is doubled"),
        pytest.param(1, Faults(worker_dies=2, message_lost=1), id="workers die and a message is lost"),
        pytest.param(2, Faults(message_lost=1), id="a message is lost"),
        pytest.param(2, Faults(handler_fails=1), id="a handler fails"),
        pytest.param(1, Faults(handler_fails=1, worker_dies=1, message_doubled=1), id="a handler fails among others"),
        pytest.param(2, Faults(postponed=1), id="a run is postponed"),
        pytest.param(1, Faults(postponed=2), id="runs are postponed"),
        pytest.param(1, Faults(postponed=1, worker_dies=1, message_lost=1), id="a run is postponed among others"),
        pytest.param(2, Faults(clock_steps=1), id="the clock of Redis steps back"),
        pytest.param(1, Faults(clock_steps=1, worker_dies=1, message_doubled=1), id="the clock steps back, and faults"),
    ],
)
def test_no_fault_of_workers_or_messages_loses_a_record_even_without_reconcile(records: int, faults: Faults) -> None:
    finding = search(records, faults, WITHOUT_RECONCILE)

    report(finding)
    assert not finding.wrong, str(finding)


@pytest.mark.parametrize(
    ("records", "faults"),
    [
        pytest.param(2, Faults(notifies_early=1), id="nothing else goes wrong"),
        pytest.param(1, Faults(notifies_early=1, worker_dies=1, message_doubled=1), id="a worker dies"),
        pytest.param(1, Faults(notifies_early=1, message_lost=1, postponed=1), id="a message is lost, a run postponed"),
        pytest.param(1, Faults(notifies_early=1, handler_fails=1), id="a handler fails"),
    ],
)
def test_a_record_whose_event_came_before_its_commit_is_found_by_the_closing_sweep_without_reconcile(
    records: int, faults: Faults
) -> None:
    finding = search(records, faults, WITHOUT_RECONCILE)

    report(finding)
    assert not finding.wrong, str(finding)


def test_an_event_in_the_middle_of_a_sweep_that_the_next_run_resumes_is_not_forgotten() -> None:
    finding = search(3, Faults(), WITHOUT_RECONCILE, workers=1)

    report(finding)
    assert not finding.wrong, str(finding)


@pytest.mark.parametrize(
    ("records", "faults"),
    [
        pytest.param(2, Faults(redis_lost=1), id="Redis is lost"),
        pytest.param(1, Faults(redis_lost=1, worker_dies=1), id="Redis is lost and a worker dies"),
        pytest.param(2, Faults(producer_dies=1), id="a producer dies"),
        pytest.param(1, Faults(producer_dies=1, redis_lost=1), id="a producer dies and Redis is lost"),
        pytest.param(1, Faults(hash_lost=1), id="the runner's hash is lost"),
    ],
)
def test_no_loss_in_redis_and_no_forgotten_notify_loses_a_record(records: int, faults: Faults) -> None:
    finding = search(records, faults)

    report(finding)
    assert not finding.wrong, str(finding)


def test_a_lost_deadline_loses_no_record() -> None:
    finding = search(1, Faults(deadline_lost=1), is_end=is_handled)

    report(finding)
    assert not finding.wrong, str(finding)


def test_a_lost_deadline_leaves_the_hash_of_a_tenant_that_has_nothing_pending_until_its_next_event() -> None:
    finding = search(1, Faults(deadline_lost=1))

    report(finding)
    assert "leaves a record or a key behind" in finding.wrong
    assert "gate waiting" in "".join(finding.trace)


def test_a_redis_that_rewinds_may_let_two_runs_in_but_not_two_advances() -> None:
    finding = search(1, Faults(redis_rewinds=1), tolerated=frozenset({Breach.TWO_RUNS}))

    report(finding)
    assert not finding.wrong, str(finding)


def test_a_settle_that_is_sent_again_after_a_lost_reply_ends_nobody_elses_run() -> None:
    finding = search(2, Faults(reply_lost=1), WITHOUT_RECONCILE)

    report(finding)
    assert not finding.wrong, str(finding)


@pytest.mark.parametrize(
    ("guards", "faults", "breach"),
    [
        pytest.param(
            Guards(advance_checks_owner=False), Faults(), Breach.NOT_OWNER, id="advance without the owner check"
        ),
        pytest.param(
            Guards(begin_checks_token=False),
            Faults(message_doubled=1),
            Breach.TWO_RUNS,
            id="begin without the token check",
        ),
        pytest.param(
            Guards(claim_refuses_lower_tokens=False),
            Faults(),
            Breach.OVERTAKEN,
            id="a claim that lets a lower token take the cursor",
        ),
        pytest.param(
            Guards(token_per_run=False),
            Faults(reply_lost=1),
            Breach.TWO_RUNS,
            id="a token that several runs share",
        ),
    ],
)
def test_the_search_finds_a_missing_check_of_tokens(guards: Guards, faults: Faults, breach: Breach) -> None:
    finding = search(1, faults, guards)

    report(finding)
    assert finding.wrong == f"I1: {breach.value}"


def test_the_search_finds_a_missing_check_of_the_position_where_two_runs_got_in() -> None:
    guards = Guards(advance_checks_position=False)

    finding = search(1, Faults(redis_rewinds=1), guards, tolerated=frozenset({Breach.TWO_RUNS}))

    report(finding)
    assert finding.wrong == f"I1: {Breach.SAME_POSITION.value}"


def test_the_search_finds_a_run_that_is_done_at_the_end_of_a_sweep_that_an_earlier_run_began() -> None:
    guards = Guards(done_after_own_sweep=False, reconciles=False)

    finding = search(3, Faults(), guards, workers=1)

    report(finding)
    assert "I3" in finding.wrong
    assert "FINISHED" in finding.trace[-2]


@pytest.mark.parametrize(
    ("records", "guards", "faults", "last_line"),
    [
        pytest.param(
            2,
            Guards(settle_counts_events=False, reconciles=False),
            Faults(),
            "nothing more happens",
            id="stop on the lease alone",
        ),
        pytest.param(
            1,
            Guards(reconciles=False),
            Faults(redis_lost=1),
            "nothing more happens",
            id="no reconcile, and Redis is lost",
        ),
        pytest.param(
            1,
            Guards(reconciles=False),
            Faults(producer_dies=1),
            "nothing more happens",
            id="no reconcile, and a producer dies",
        ),
        pytest.param(
            1,
            Guards(queued_has_deadline=False, reconciles=False),
            Faults(message_lost=1),
            "nothing more happens",
            id="no deadline for a queued run, and its message is lost",
        ),
        pytest.param(
            1,
            Guards(closing_sweep=False, reconciles=False),
            Faults(notifies_early=1),
            "nothing more happens",
            id="no closing sweep, and a producer notifies before it commits",
        ),
        pytest.param(
            1,
            Guards(lease_as_of_begin=False, reconciles=False),
            Faults(notifies_early=1),
            "nothing more happens",
            id="a run that ends after the lease and read before it, and a producer notifies before it commits",
        ),
        pytest.param(
            1,
            Guards(postponed_has_deadline=False, reconciles=False),
            Faults(postponed=1),
            "nothing more happens",
            id="no deadline in line, and nobody calls",
        ),
        pytest.param(
            1,
            Guards(reconcile_adopts=False),
            Faults(deadline_lost=1),
            "nothing more happens",
            id="no adoption, and a deadline is lost",
        ),
    ],
)
def test_the_search_finds_a_missing_way_back(records: int, guards: Guards, faults: Faults, last_line: str) -> None:
    finding = search(records, faults, guards, is_end=is_handled)

    report(finding)
    assert "I3" in finding.wrong
    assert finding.trace[-1] == last_line


def test_the_shortest_trace_is_told_step_by_step() -> None:
    finding = search(1, Faults(), Guards(advance_checks_owner=False))

    told = [line[: line.index("gate")].strip() for line in finding.trace]

    assert told == [
        "producer 1 commits",
        "producer 1 notifies: STARTED",
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
