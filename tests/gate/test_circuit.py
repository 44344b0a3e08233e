"""The circuit of a pipeline, clause by clause: what opens it, who probes, what closes it."""

from __future__ import annotations

import pytest
import redis

from taskbridge.common.run_key import RunKey
from taskbridge.gate import Answer, Begun, Blame, Hold, Keys, Outcome, Reminder, State
from taskbridge.gate.constants import Constant
from tests.gate.crowd import PIPELINE, SPACING, TIMING, Crowd

OPEN_WAITS = [1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000]


@pytest.fixture
def crowd(redis_client: redis.Redis, keys: Keys) -> Crowd:
    return Crowd(redis_client, keys)


@pytest.fixture
def broken(crowd: Crowd) -> Crowd:
    """A crowd whose circuit was opened by "opener": it blames the downstream, as another did before."""
    crowd.another_says_so()
    crowd.fails(*["opener"] * 4)
    assert crowd.circuit().open
    return crowd


# What opens it


def test_five_failures_in_a_row_that_blame_the_downstream(crowd: Crowd) -> None:
    crowd.fails(*"abab")
    assert not crowd.circuit().open

    crowd.fails("a")

    assert crowd.circuit().open


def test_something_that_is_handled_in_between_begins_the_count_anew(crowd: Crowd) -> None:
    crowd.fails(*"abab")
    crowd.start("c")
    crowd.settle("c", handled=1)
    crowd.fails(*"abab")
    assert not crowd.circuit().open

    crowd.fails("a")

    assert crowd.circuit().open


def test_a_run_that_handled_nothing_and_one_that_only_waits_leave_the_count(crowd: Crowd) -> None:
    crowd.fails(*"abab")
    crowd.start("c")
    crowd.settle("c", Outcome.RETRY, failed=False, retry_ms=10)
    crowd.start("d")
    crowd.settle("d", took=0)

    crowd.fails("a")

    assert crowd.circuit().open


def test_a_run_that_handled_some_and_then_failed_is_the_first_of_a_new_count(crowd: Crowd) -> None:
    crowd.fails(*"abab")
    crowd.come("a")
    crowd.begin("a")
    crowd.fail("a", handled=3)
    crowd.fails(*"bab")
    assert not crowd.circuit().open

    crowd.fails("a")

    assert crowd.circuit().open


@pytest.mark.parametrize("blame", [Blame.RECORD, Blame.DOWNSTREAM])
def test_failures_of_three_tenants(crowd: Crowd, blame: Blame) -> None:
    crowd.fails(*"ab", blame=blame)
    assert not crowd.circuit().open

    crowd.fails("c", blame=blame)

    assert crowd.circuit().open


def test_two_tenants_with_bad_records_are_no_outage(crowd: Crowd) -> None:
    crowd.fails(*"abbabaabbab", blame=Blame.RECORD)

    assert not crowd.circuit().open


def test_three_tenants_with_something_handled_in_between_are_no_outage(crowd: Crowd) -> None:
    crowd.fails(*"ab", blame=Blame.RECORD)
    crowd.start("d")
    crowd.settle("d", Outcome.MORE, handled=1)
    crowd.fails(*"cb", blame=Blame.RECORD)

    assert not crowd.circuit().open


def test_failures_that_blame_a_record_do_not_count_against_the_downstream(crowd: Crowd) -> None:
    crowd.fails(*"abab")
    crowd.fails(*"abab", blame=Blame.RECORD)

    assert not crowd.circuit().open


@pytest.mark.parametrize("blame", [Blame.PIPELINE, Blame.DOWNSTREAM])
def test_one_failure_that_blames_the_pipeline_beside_another_tenants(crowd: Crowd, blame: Blame) -> None:
    crowd.fails("a", blame=blame)
    assert not crowd.circuit().open

    crowd.fails("b", blame=Blame.PIPELINE)

    assert crowd.circuit().open


@pytest.mark.parametrize("blame", [Blame.PIPELINE, Blame.DOWNSTREAM])
def test_one_tenant_alone_never_opens_it(crowd: Crowd, blame: Blame) -> None:
    crowd.fails(*"a" * 20, blame=blame)
    crowd.fails("b", blame=Blame.RECORD)
    crowd.fails("a", blame=blame)

    assert not crowd.circuit().open
    assert crowd.start("healthy").probe is None


def test_a_failure_that_blames_nobody_never(crowd: Crowd) -> None:
    crowd.fails(*"abcdefgh", blame=Blame.NOBODY)

    assert crowd.circuit() == (False, None, 0, 0, None, None, 0, None, None)


@pytest.mark.parametrize("outcome", [Outcome.MORE, Outcome.DONE, Outcome.STALE])
def test_blame_without_a_back_off_is_none(crowd: Crowd, outcome: Outcome) -> None:
    crowd.start("a")

    crowd.settle("a", outcome, blame=Blame.PIPELINE, owner="1")

    assert not crowd.circuit().open


def test_the_circuit_of_another_pipeline_is_another(broken: Crowd) -> None:
    assert not broken.gate.circuit("alerts").open


def test_what_people_see(crowd: Crowd) -> None:
    crowd.another_says_so()
    crowd.fails("a", blame=Blame.PIPELINE)
    opened_at = crowd.gate.us // 1000
    crowd.put_in_queue("b")

    assert crowd.circuit() == (True, opened_at + 1_000, 0, 1, opened_at, None, 2, None, None)

    crowd.deadline_passes("b")
    crowd.begin("b")
    crowd.settle("b", handled=1)
    assert crowd.circuit() == (False, None, 0, 1, opened_at, crowd.gate.us // 1000, 0, None, None)


# Who probes


def test_while_it_is_open_nobody_begins(broken: Crowd) -> None:
    broken.put_in_queue("a", "b")
    broken.until(broken.opens_until() - 1)

    assert broken.begin_of("c") is Answer.POSTPONED
    assert broken.wait_queue() == ["a", "b", "c", "opener"], "first events first"


def test_the_waits_double_up_to_half_a_minute(broken: Crowd) -> None:
    waits = []
    for _ in OPEN_WAITS:
        waits.append(broken.opens_until() - broken.now())
        assert broken.due("opener") == broken.opens_until(), "nobody else is there"
        broken.fails("opener")

    assert waits == OPEN_WAITS
    assert broken.circuit().probes == 7


def test_one_tenant_at_a_time_probes(broken: Crowd) -> None:
    broken.put_in_queue("a", "b")
    broken.deadline_passes("a")
    assert isinstance(broken.begin("a"), Begun)

    for _ in range(3):
        broken.passes(TIMING.runner_ttl - 10)
        assert broken.gate.beat(RunKey(PIPELINE, "a", broken.tokens["a"]))
        assert broken.expire("b", early=True) == [Answer.PUBLISHED]
        assert broken.begin("b") is Answer.POSTPONED
        assert (broken.due("b") or 0) > broken.now() + 1_000, "not before the probe can have ended"


def test_tenants_take_turns(broken: Crowd) -> None:
    broken.put_in_queue("a", "b")
    probes = []
    for _ in range(6):
        broken.until(broken.opens_until())
        head = broken.wait_queue()[0]
        assert broken.due(head) == broken.opens_until()
        assert broken.expire(head) == [Answer.PUBLISHED]
        assert isinstance(broken.begin(head), Begun)
        probes.append(head)
        broken.fail(head)

    assert probes == ["a", "b", "opener", "a", "b", "opener"]


def test_a_probe_that_fails_calls_the_next_when_the_circuit_may_be_probed(broken: Crowd) -> None:
    broken.put_in_queue("a", "b")
    broken.fails("a")

    assert broken.due("b") == broken.opens_until()
    assert broken.due("a") == broken.now() + 500
    assert broken.wait_queue() == ["b", "opener", "a"]


def test_a_probe_that_only_waits_calls_the_next_at_once(broken: Crowd) -> None:
    broken.put_in_queue("a", "b")
    broken.deadline_passes("a")
    broken.begin("a")

    assert broken.settle("a", Outcome.RETRY, failed=False, retry_ms=60_000) is Answer.HELD

    assert broken.due("b") == broken.now()
    assert broken.due("a") == broken.now() + 60_000
    assert isinstance(broken.begin("b") if broken.expire("b") == [Answer.PUBLISHED] else None, Begun)
    assert broken.circuit().probes == 0, "it did not fail"


@pytest.mark.parametrize("outcome", [Outcome.DONE, Outcome.MORE, Outcome.STALE])
def test_a_probe_that_found_nothing_to_try_calls_the_next_at_once(broken: Crowd, outcome: Outcome) -> None:
    broken.put_in_queue("a", "b")
    broken.deadline_passes("a")
    broken.begin("a")

    broken.settle("a", outcome, took=0, owner="1")

    assert broken.circuit().open
    assert broken.deadline_passes("b") is Answer.PUBLISHED
    assert broken.now() == broken.opens_until()
    assert isinstance(broken.begin("b"), Begun)


def test_a_probe_whose_run_dies_gives_way_to_the_next(broken: Crowd) -> None:
    broken.put_in_queue("a", "b")
    broken.deadline_passes("a")
    broken.begin("a")

    assert broken.deadline_passes("a") is Answer.REISSUED
    assert broken.begin("a") is Answer.POSTPONED
    assert broken.due("b") == broken.now()
    assert broken.expire("b") == [Answer.PUBLISHED]
    assert isinstance(broken.begin("b"), Begun)
    assert broken.wait_queue() == ["opener", "a"]


def test_a_probe_whose_run_dies_and_that_nobody_can_follow_probes_again(broken: Crowd) -> None:
    broken.come("opener")
    broken.begin("opener")

    assert broken.deadline_passes("opener") is Answer.REISSUED
    assert isinstance(broken.begin("opener"), Begun)
    broken.settle("opener", handled=1)
    assert not broken.circuit().open


def test_a_probe_whose_runner_is_lost_is_nobody(broken: Crowd) -> None:
    broken.put_in_queue("a", "b")
    broken.deadline_passes("a")
    broken.begin("a")
    broken.client.delete(broken.keys.runner(PIPELINE, "a"))
    assert broken.deadline_passes("a") is Answer.NOT_DUE

    broken.expire("b", early=True)

    assert isinstance(broken.begin("b"), Begun)


def test_a_message_that_comes_too_early_does_not_lose_the_next_probe(broken: Crowd) -> None:
    """The head of the wait queue is on its way when the probe before it fails: it comes, waits, and must come back."""
    broken.put_in_queue("a", "b")
    broken.passes(60_000)
    broken.expire("b", early=True)
    broken.fails("a")
    assert broken.wait_queue()[0] == "b"

    assert broken.begin("b") is Answer.POSTPONED
    assert broken.due("b") == broken.opens_until()


def test_a_first_event_that_comes_while_it_is_open_probes_first(broken: Crowd) -> None:
    broken.passes(500)
    broken.put_in_queue("newcomer")

    assert broken.due("newcomer") == broken.opens_until()
    assert broken.deadline_passes("newcomer") is Answer.PUBLISHED
    assert broken.expire("opener") == [Answer.PUBLISHED]
    assert broken.begin("opener") is Answer.POSTPONED, "it is behind"
    assert isinstance(broken.begin("newcomer"), Begun)


def test_who_comes_before_the_head_of_the_wait_queue_calls_it(broken: Crowd) -> None:
    broken.put_in_queue("a")
    broken.until(broken.opens_until())
    # As if its call were lost: far ahead.
    broken.client.zadd(broken.keys.due(PIPELINE), {"a": broken.gate.us})

    assert broken.begin_of("newcomer") is Answer.POSTPONED

    assert broken.due("a") == broken.now()
    assert broken.expire("a") == [Answer.PUBLISHED]
    assert isinstance(broken.begin("a"), Begun)


def test_an_operator_who_starts_a_tenant_early_does_not_lose_the_probe(broken: Crowd) -> None:
    assert broken.expire("opener", early=True) == [Answer.PUBLISHED]
    assert broken.begin("opener") is Answer.POSTPONED

    assert broken.due("opener") == broken.opens_until()


# What a probe tries


def test_a_probe_tries_the_first_record_while_the_downstream_is_to_blame(broken: Crowd) -> None:
    tried = []
    for _ in range(8):
        broken.come("opener")
        begun = broken.begin("opener")
        assert isinstance(begun, Begun)
        tried.append(begun.probe)
        broken.fail("opener")

    assert tried == [0, 0, 0, 0, 0, 16, 32, 64], "and others once it is open for half a minute: the first may be bad"


@pytest.mark.parametrize(("blame", "tenants"), [(Blame.RECORD, "abc"), (Blame.PIPELINE, "ab")])
def test_probes_try_other_records_where_the_first_may_be_at_fault(crowd: Crowd, blame: Blame, tenants: str) -> None:
    crowd.fails(*tenants, blame=blame)
    tried = []
    for _ in range(15):
        head = crowd.wait_queue()[0]
        crowd.come(head)
        begun = crowd.begin(head)
        assert isinstance(begun, Begun)
        tried.append(begun.probe)
        crowd.fail(head, blame=Blame.DOWNSTREAM)

    assert tried == [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 0, 1]


def test_a_probe_that_fails_because_of_its_record_lets_the_next_try_another(broken: Crowd) -> None:
    broken.fails("opener", blame=Blame.RECORD)
    broken.come("opener")

    begun = broken.begin("opener")

    assert isinstance(begun, Begun)
    assert begun.probe == 1


def test_a_run_learns_once_that_the_one_before_it_died(crowd: Crowd) -> None:
    assert not crowd.start("a").died
    dead = crowd.tokens["a"]
    assert crowd.deadline_passes("a") is Answer.REISSUED
    assert crowd.deadline_passes("a") is Answer.REPUBLISHED

    begun = crowd.begin("a")

    assert isinstance(begun, Begun)
    assert begun.died == (dead, "worker-1")
    crowd.settle("a", Outcome.RETRY, retry_ms=10, counted=True)
    assert not crowd.start("b").died
    crowd.come("a")
    begun = crowd.begin("a")
    assert isinstance(begun, Begun)
    assert not begun.died


@pytest.mark.parametrize("outcome", [Outcome.STOPPED, Outcome.STALE, Outcome.RETRY])
@pytest.mark.parametrize("counted", [True, False])
def test_a_death_is_told_until_a_run_has_counted_it(crowd: Crowd, outcome: Outcome, counted: bool) -> None:
    crowd.start("a")
    crowd.deadline_passes("a")
    crowd.begin("a")

    crowd.settle("a", outcome, took=0, counted=counted, owner=crowd.tokens["a"])
    crowd.come("a")

    begun = crowd.begin("a")
    assert isinstance(begun, Begun)
    assert (begun.died is None) is counted


def test_a_run_under_a_closed_circuit_is_no_probe(crowd: Crowd) -> None:
    assert crowd.start("a").probe is None


# What closes it


def test_a_probe_that_handles_something_closes_it_and_all_in_the_wait_queue_wait_for_their_turn(broken: Crowd) -> None:
    broken.put_in_queue("a", "b", "c")
    broken.deadline_passes("a")
    broken.begin("a")
    due = [broken.due(tenant) for tenant in ("b", "c", "opener")]

    broken.settle("a", Outcome.MORE, handled=1)

    assert not broken.circuit().open
    assert broken.wait_queue() == []
    assert broken.turns() == ["b", "c", "opener"]
    assert [broken.due(tenant) for tenant in ("b", "c", "opener")] == due, "nobody is due by it"
    for tenant in ("b", "c", "opener"):
        begun = broken.has_its_turn(tenant)
        assert isinstance(begun, Begun)
        assert begun.probe is None
    assert broken.turns() == []


def test_a_run_that_closes_it_and_ends_gives_the_first_its_turn(broken: Crowd) -> None:
    broken.put_in_queue("a", "b", "c")
    broken.deadline_passes("a")
    broken.begin("a")

    broken.settle("a", handled=1)

    assert isinstance(broken.begin("b"), Begun)
    assert broken.turns() == ["c", "opener"]


def closed(broken: Crowd, *tenants: str, on_its_way: str = "") -> None:
    """Let "prober" close it while these are in the wait queue; it goes on, so that nobody is given a turn."""
    broken.put_in_queue("prober")
    broken.deadline_passes("prober")
    broken.begin("prober")
    broken.put_in_queue(*tenants)
    if on_its_way:
        assert broken.expire(on_its_way, early=True) == [Answer.PUBLISHED]
    broken.settle("prober", Outcome.MORE, handled=1)
    assert not broken.circuit().open


def test_who_waits_for_its_turn_since_it_closed_is_told_so(broken: Crowd) -> None:
    closed(broken, "a")

    assert (broken.status("a").hold, broken.status("a").waits_for_turn) == (Hold.TURN, True)
    assert broken.gate.places(PIPELINE, ["a", "opener"]) == [(None, 0, 1, 2), (None, 0, 2, 2)]


def test_who_is_in_the_wait_queue_is_told_so(broken: Crowd) -> None:
    broken.put_in_queue("a")

    assert (broken.status("a").hold, broken.status("a").waits_for_turn) == (Hold.WAIT_QUEUE, False)


def test_the_deadline_of_who_waits_for_its_turn_since_it_closed_moves_on(broken: Crowd) -> None:
    closed(broken, "a")

    assert broken.deadline_passes("a") is Answer.POSTPONED

    assert broken.due("a") == broken.now() + Constant.TURN_DEADLINE_MS
    assert "a" in broken.turns()


def test_who_waits_for_its_turn_since_it_closed_comes_by_its_deadline_where_the_turns_are_lost(broken: Crowd) -> None:
    closed(broken, "a")
    broken.client.delete(broken.keys.fair_queue)

    assert broken.deadline_passes("a") is Answer.PUBLISHED
    assert isinstance(broken.begin("a"), Begun)


def test_events_reminders_and_operators_find_who_waits_for_its_turn_since_it_closed(broken: Crowd) -> None:
    closed(broken, "a")

    assert broken.gate.notify(PIPELINE, "a", SPACING) is Answer.ABSORBED
    assert broken.gate.remind(PIPELINE, [Reminder("a", 0)]) == [Answer.ABSORBED]
    assert broken.expire("a", early=True) == [Answer.PUBLISHED]
    assert isinstance(broken.begin("a"), Begun)
    assert "a" not in broken.turns()


@pytest.mark.parametrize("opens_again", [False, True])
def test_who_is_on_its_way_when_it_closes_has_no_turn_beside_that(broken: Crowd, opens_again: bool) -> None:
    closed(broken, "a", on_its_way="a")
    assert "a" in broken.turns()
    if opens_again:
        broken.start("third")
        broken.fail("third", blame=Blame.PIPELINE)
        broken.start("fourth")
        broken.fail("fourth", blame=Blame.PIPELINE)
        assert broken.circuit().open

    answer = broken.begin("a")

    assert (answer is Answer.POSTPONED) is opens_again
    assert "a" not in broken.turns()
    assert ("a" in broken.wait_queue()) is opens_again


def test_the_turn_of_who_is_on_its_way_starts_nothing(broken: Crowd) -> None:
    closed(broken, "a", on_its_way="a")
    broken.published.clear()

    broken.gate.publish_waiting([f"{PIPELINE}:a"])

    assert broken.published == []
    assert isinstance(broken.begin("a"), Begun)


def test_where_it_opens_again_who_waits_for_its_turn_goes_to_its_old_place_in_the_wait_queue(broken: Crowd) -> None:
    closed(broken, "a", "b")
    broken.start("third", "fourth")
    broken.fail("third", blame=Blame.PIPELINE)
    broken.fail("fourth", blame=Blame.PIPELINE)
    broken.put_in_queue("newcomer")

    assert broken.has_its_turn("b") is Answer.POSTPONED

    assert broken.wait_queue() == ["b", "newcomer", "fourth"]
    assert broken.turns() == ["a", "opener"]
    assert broken.status("b").hold is Hold.WAIT_QUEUE


def test_a_run_that_was_on_before_it_opened_closes_it_too(crowd: Crowd) -> None:
    crowd.another_says_so()
    crowd.start("long")
    crowd.fails("a", blame=Blame.PIPELINE)

    crowd.settle("long", handled=100)

    assert not crowd.circuit().open


def test_a_run_that_was_on_before_it_opened_and_failed_in_the_end_does_not(crowd: Crowd) -> None:
    crowd.another_says_so()
    crowd.start("long")
    crowd.fails("a", blame=Blame.PIPELINE)
    until = crowd.opens_until()

    crowd.fail("long", handled=100)

    assert crowd.opens_until() == until, "it is no probe, so the wait is what it was"
    assert crowd.circuit().probes == 0
    assert crowd.wait_queue() == ["a", "long"]


def test_a_run_that_was_on_before_it_opened_does_not_end_anothers_probe(crowd: Crowd) -> None:
    crowd.another_says_so()
    crowd.start("long", "longer")
    crowd.fails("a", blame=Blame.PIPELINE)
    crowd.come("a")
    crowd.begin("a")
    until = crowd.opens_until()

    crowd.fail("long")
    crowd.settle("longer", took=0)

    assert (crowd.opens_until(), crowd.circuit().probes) == (until, 0)
    assert crowd.begin_of("b") is Answer.POSTPONED, "a still probes"
    crowd.settle("a", handled=1)
    assert not crowd.circuit().open


def test_a_failure_that_an_open_circuit_explains_is_not_punished_by_its_own_back_off(broken: Crowd) -> None:
    broken.come("opener")
    broken.begin("opener")
    broken.fail("opener", retry_ms=300_000)
    broken.put_in_queue("a")
    broken.deadline_passes("a")
    broken.begin("a")

    broken.settle("a", Outcome.MORE, handled=1)

    assert isinstance(broken.has_its_turn("opener"), Begun)


def test_a_tenant_that_waits_for_something_else_is_not_called(broken: Crowd) -> None:
    broken.put_in_queue("a", "b")
    broken.deadline_passes("a")
    broken.begin("a")
    broken.settle("a", Outcome.RETRY, failed=False, retry_ms=60_000)
    told = broken.due("a")
    broken.deadline_passes("b")
    broken.begin("b")

    broken.settle("b", Outcome.MORE, handled=1)

    assert broken.due("a") == told
    assert broken.turns() == ["opener"]


def test_it_opens_again_as_if_it_had_never_been_open(broken: Crowd) -> None:
    broken.fails("opener", "opener")
    broken.come("opener")
    broken.begin("opener")
    broken.settle("opener", handled=1)
    broken.another_says_so()
    broken.fails(*["opener"] * 3)
    assert not broken.circuit().open

    broken.fails("opener")

    assert broken.opens_until() == broken.now() + 1_000
    assert (broken.circuit().opened, broken.circuit().probes) == (2, 0)


# With a cap on runs


def test_the_slot_of_a_run_that_may_not_begin_is_given_back(crowd: Crowd) -> None:
    crowd.another_says_so()
    crowd.most_runs = 1
    crowd.start("a")
    crowd.put_in_queue("b")
    crowd.settle("a")
    crowd.most_runs = 2
    crowd.fails("c", blame=Blame.PIPELINE)
    assert crowd.slots() == {"b"}

    assert crowd.begin("b") is Answer.POSTPONED

    assert crowd.slots() == set()


def waits_under_a_cap(crowd: Crowd, most_runs: int, *tenants: str) -> None:
    """Let it open while these are in the wait queue, and the first of them begin to probe."""
    crowd.another_says_so()
    crowd.most_runs = most_runs
    crowd.fails("opener", blame=Blame.PIPELINE)
    crowd.put_in_queue(*tenants)
    crowd.deadline_passes(tenants[0])
    assert isinstance(crowd.begin(tenants[0]), Begun)


def test_where_it_closes_free_slots_are_kept_for_the_first_and_the_others_stay(crowd: Crowd) -> None:
    waits_under_a_cap(crowd, 3, *"abcdefg")

    crowd.settle("a", handled=1)

    assert crowd.slots() == {"b", "c", "d"}
    assert (crowd.wait_queue(), crowd.turns()) == ([*"efg", "opener"], [])
    assert [crowd.due(tenant) == crowd.now() for tenant in "cdefg"] == [True, True, False, False, False]
    crowd.expire("c", "d")
    assert crowd.begin_of("newcomer") is Answer.POSTPONED
    for tenant, following in zip("bcd", "efg", strict=True):
        assert isinstance(crowd.begin(tenant), Begun)
        crowd.settle(tenant, handled=1)
        assert isinstance(crowd.begin(following), Begun), "it came with the slot"
    assert crowd.slots() == {*"efg"}


def test_where_it_closes_slots_of_runs_that_are_on_are_not_kept_for_others(crowd: Crowd) -> None:
    crowd.most_runs = 3
    crowd.start("long")
    waits_under_a_cap(crowd, 3, *"abcd")
    crowd.gate.beat(RunKey(PIPELINE, "long", crowd.tokens["long"]))

    crowd.settle("a", handled=1)

    assert crowd.slots() == {"long", "b", "c"}


def test_an_overdue_run_passes_no_slot_on_that_was_kept_when_it_closed(crowd: Crowd) -> None:
    crowd.most_runs = 2
    crowd.start("long")
    waits_under_a_cap(crowd, 2, *"abcd")
    crowd.passes(4_000)
    assert crowd.slots() == {"long", "a"}
    crowd.settle("a", handled=1)
    assert crowd.slots() == {"b", "c"}

    crowd.settle("long")

    assert crowd.slots() == {"b", "c"}


def test_where_it_closes_while_all_wait_the_first_is_called_for_the_end_of_that(broken: Crowd) -> None:
    broken.put_in_queue("a", "b")
    broken.deadline_passes("a")
    broken.begin("a")
    broken.client.hset(broken.keys.circuit(PIPELINE), mapping={"rest": broken.start_ms + 60_000, "width": 1})

    broken.settle("a", handled=1)

    assert not broken.circuit().open
    assert (broken.wait_queue(), broken.turns()) == (["b", "opener"], [])
    assert broken.due("b") == 60_000


def test_while_it_is_open_a_slot_that_gets_free_calls_nobody(crowd: Crowd) -> None:
    crowd.another_says_so()
    crowd.most_runs = 1
    crowd.start("a")
    crowd.put_in_queue("b")

    crowd.fail("a", blame=Blame.PIPELINE)

    assert crowd.wait_queue() == ["b", "a"]
    assert crowd.slots() == set()
    assert crowd.due("b") == crowd.opens_until()


def test_a_probe_without_a_slot_leaves_the_probe_to_another(crowd: Crowd) -> None:
    crowd.another_says_so()
    crowd.most_runs = 2
    crowd.start("a", "b")
    crowd.fail("a", blame=Blame.PIPELINE)
    crowd.come("a")
    crowd.begin("a")
    crowd.gate.beat(RunKey(PIPELINE, "b", crowd.tokens["b"]))
    crowd.most_runs = 1
    assert crowd.deadline_passes("a") is Answer.REISSUED
    crowd.gate.beat(RunKey(PIPELINE, "b", crowd.tokens["b"]))
    assert crowd.begin("a") is Answer.POSTPONED

    crowd.most_runs = 2

    assert isinstance(crowd.begin_of("c"), Begun)


def test_who_has_no_slot_to_probe_in_does_not_come_again_at_once(crowd: Crowd) -> None:
    crowd.another_says_so()
    crowd.most_runs = 2
    crowd.start("long", "a")
    crowd.fail("a", blame=Blame.PIPELINE)
    crowd.most_runs = 1
    crowd.come("a")

    assert crowd.begin("a") is Answer.POSTPONED

    assert crowd.due("a") == crowd.now() + TIMING.republish


# When parts of Redis are lost, and when all is over


def test_a_circuit_that_is_lost_is_closed_and_all_come_by_themselves(broken: Crowd) -> None:
    broken.put_in_queue("a", "b")
    broken.client.delete(broken.keys.circuit(PIPELINE))

    for tenant in ("a", "b", "opener"):
        assert broken.deadline_passes(tenant) is Answer.PUBLISHED
        assert isinstance(broken.begin(tenant), Begun)
    assert broken.wait_queue() == []


def test_a_line_that_is_lost_and_nobody_waits_for_ever(broken: Crowd) -> None:
    broken.put_in_queue("a", "b")
    broken.client.delete(broken.keys.wait_queue(PIPELINE))

    broken.deadline_passes("a")
    assert isinstance(broken.begin("a"), Begun)
    broken.settle("a", handled=1)
    broken.deadline_passes("b")
    assert isinstance(broken.begin("b"), Begun)


def test_a_tenant_in_the_wait_queue_that_lost_its_deadline_is_passed_over(broken: Crowd) -> None:
    broken.put_in_queue("a", "b")
    broken.client.zrem(broken.keys.due(PIPELINE), "a")

    broken.until(broken.opens_until())
    broken.expire("opener")
    assert broken.begin("opener") is Answer.POSTPONED

    assert broken.due("b") == broken.now()


def test_a_tenant_in_the_wait_queue_that_lost_its_deadline_comes_when_it_closes(broken: Crowd) -> None:
    broken.put_in_queue("a", "b")
    broken.deadline_passes("a")
    broken.begin("a")
    broken.client.zrem(broken.keys.due(PIPELINE), "b")

    broken.settle("a", Outcome.MORE, handled=1)

    assert isinstance(broken.has_its_turn("b"), Begun)


def test_a_circuit_goes_by_itself_when_nothing_has_failed_for_a_day(broken: Crowd) -> None:
    key = broken.keys.circuit(PIPELINE)
    assert 86_000_000 < broken.lifetime(key) <= 86_400_000

    broken.come("opener")
    broken.begin("opener")
    broken.settle("opener", handled=1)

    assert 86_000_000 < broken.lifetime(key) <= 86_400_000
    assert broken.status("opener").state is State.IDLE
    assert list(broken.client.scan_iter(f"{broken.keys.prefix}:*")) == [key]


def test_a_circuit_that_never_opened_leaves_nothing_once_something_was_handled(crowd: Crowd) -> None:
    crowd.fails(*"ab")
    assert crowd.lifetime(crowd.keys.circuit(PIPELINE)) > 0
    for tenant in "ab":
        crowd.come(tenant)
        crowd.begin(tenant)
        crowd.settle(tenant, handled=1)

    assert list(crowd.client.scan_iter(f"{crowd.keys.prefix}:*")) == []
