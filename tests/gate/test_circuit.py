"""The circuit of a pipeline, clause by clause: what opens it, who probes, what closes it."""

from __future__ import annotations

import pytest

from taskbridge.common.run_key import RunKey
from taskbridge.gate import Answer, Begun, Blame, Hold, Outcome, State
from tests.gate.crowd import PIPELINE, TIMING, Crowd

OPEN_WAITS = [1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000]


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
    crowd.start("c")
    crowd.settle("c", handled=1)
    crowd.fails(*"abab")
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


def test_a_probe_that_only_waits_calls_the_next_at_once(broken: Crowd) -> None:
    broken.put_in_queue("a", "b")
    broken.deadline_passes("a")
    broken.begin("a")

    assert broken.settle("a", Outcome.RETRY, failed=False, retry_ms=60_000) is Answer.HELD

    assert broken.due("b") == broken.now()
    assert broken.due("a") == broken.now() + 60_000
    assert isinstance(broken.begin("b") if broken.expire("b") == [Answer.PUBLISHED] else None, Begun)
    assert broken.circuit().probes == 0, "it did not fail"


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


# With a cap on runs


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


def test_where_it_closes_while_all_wait_the_first_is_called_for_the_end_of_that(broken: Crowd) -> None:
    broken.put_in_queue("a", "b")
    broken.deadline_passes("a")
    broken.begin("a")
    broken.client.hset(broken.keys.circuit(PIPELINE), mapping={"rest": broken.start_ms + 60_000, "width": 1})

    broken.settle("a", handled=1)

    assert not broken.circuit().open
    assert (broken.wait_queue(), broken.turns()) == (["b", "opener"], [])
    assert broken.due("b") == 60_000


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
