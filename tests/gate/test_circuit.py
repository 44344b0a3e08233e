"""The circuit of a pipeline: what opens it, who probes with which record, what closes it; and a cap on its runs.

`test_admission.py` of the model has the table, and what happens to runs that are on meanwhile, to a cap, and where keys
are lost.
"""

from __future__ import annotations

import pytest

from taskbridge.gate import Answer, Begun, Blame, Outcome
from tests.gate.crowd import Crowd

NOBODY, RECORD, DOWNSTREAM, WHOLE = Blame.NOBODY, Blame.RECORD, Blame.DOWNSTREAM, Blame.PIPELINE


@pytest.mark.parametrize(
    ("before", "blame", "last", "last_blame"),
    [
        pytest.param("abab", DOWNSTREAM, "a", DOWNSTREAM, id="five in a row that blame the downstream"),
        pytest.param("ab", RECORD, "c", RECORD, id="three tenants, whatever they blame"),
        pytest.param("ab", DOWNSTREAM, "c", DOWNSTREAM, id="three tenants"),
        pytest.param("a", WHOLE, "b", WHOLE, id="two that blame the pipeline"),
        pytest.param("a", DOWNSTREAM, "b", WHOLE, id="one that blames it beside another tenant's"),
    ],
)
def test_failures_that_open_it(crowd: Crowd, before: str, blame: Blame, last: str, last_blame: Blame) -> None:
    crowd.fails(*before, blame=blame)
    crowd.start("healthy")
    crowd.settle("healthy", handled=1)
    crowd.fails(*before, blame=blame)
    assert not crowd.circuit().open, "something was handled in between"

    crowd.fails(last, blame=last_blame)

    assert crowd.circuit().open


@pytest.mark.parametrize(
    ("tenants", "blame"),
    [
        pytest.param("abbabaabbab", RECORD, id="two tenants with bad records"),
        pytest.param("a" * 20, DOWNSTREAM, id="one tenant alone"),
        pytest.param("a" * 20, WHOLE, id="one tenant alone that blames the pipeline"),
        pytest.param("abcdefgh", NOBODY, id="nobody is blamed"),
    ],
)
def test_failures_that_are_no_outage(crowd: Crowd, tenants: str, blame: Blame) -> None:
    crowd.fails(*tenants, blame=blame)

    assert not crowd.circuit().open
    assert crowd.start("healthy").probe is None


def test_an_outage_from_its_first_failure_to_its_end(crowd: Crowd) -> None:
    crowd.another_says_so()
    crowd.fails("opener", blame=WHOLE)
    opened_at = crowd.gate.us // 1000
    assert crowd.circuit() == (True, opened_at + 1_000, 0, 1, opened_at, None, 1, None, None)

    # Nobody begins; first events stand first.
    crowd.put_in_queue("a", "b")
    crowd.until(crowd.opens_until() - 1)
    assert crowd.begin_of("c") is Answer.POSTPONED
    assert crowd.wait_queue() == ["a", "b", "c", "opener"]

    # One tenant at a time probes, in turn, and the waits between them double up to half a minute.
    waits, probes = [], []
    for _ in range(8):
        crowd.until(crowd.opens_until())
        head, following = crowd.wait_queue()[:2]
        assert crowd.due(head) == crowd.opens_until()
        assert crowd.expire(head) == [Answer.PUBLISHED]
        assert isinstance(crowd.begin(head), Begun)
        assert crowd.expire(following, early=True) == [Answer.PUBLISHED]
        assert crowd.begin(following) is Answer.POSTPONED
        crowd.fail(head)
        probes.append(head)
        waits.append(crowd.opens_until() - crowd.now())
    assert "".join(one[0] for one in probes) == "abcoabco"
    assert waits == [2_000, 4_000, 8_000, 16_000, 30_000, 30_000, 30_000, 30_000]
    assert crowd.circuit().probes == 8

    # A probe that handles something closes it, and all have their turns in their order, without being due.
    crowd.deadline_passes("a")
    crowd.begin("a")
    due = [crowd.due(tenant) for tenant in ("b", "c", "opener")]
    crowd.settle("a", Outcome.MORE, handled=1)
    assert not crowd.circuit().open
    assert (crowd.wait_queue(), crowd.turns()) == ([], ["b", "c", "opener"])
    assert [crowd.due(tenant) for tenant in ("b", "c", "opener")] == due
    for tenant in ("b", "c", "opener"):
        begun = crowd.has_its_turn(tenant)
        assert isinstance(begun, Begun)
        assert begun.probe is None


@pytest.mark.parametrize(
    ("blames", "tried"),
    [
        # And others once it is open for half a minute: the first may be bad.
        pytest.param([DOWNSTREAM] * 5, [0, 0, 0, 0, 0, 16, 32, 64], id="the downstream is to blame"),
        pytest.param([RECORD] * 3, [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 0, 1], id="records may be"),
    ],
)
def test_which_record_a_probe_tries(crowd: Crowd, blames: list[Blame], tried: list[int]) -> None:
    for at, blame in enumerate(blames):
        crowd.fails("abc"[at % (2 if blame is DOWNSTREAM else 3)], blame=blame)
    for record in tried:
        head = crowd.wait_queue()[0]
        crowd.come(head)
        begun = crowd.begin(head)
        assert isinstance(begun, Begun)
        assert begun.probe == record
        crowd.fail(head)


def test_a_cap_that_is_lowered_is_kept_once_the_runs_that_are_on_have_ended(crowd: Crowd) -> None:
    crowd.most_runs = 4
    crowd.start(*"abcd")
    crowd.most_runs = 2
    crowd.put_in_queue("e")
    for tenant in "ab":
        crowd.settle(tenant)
        assert crowd.begin("e") is Answer.POSTPONED, "it was called, and two others are on"
        assert "e" not in crowd.slots()

    crowd.settle("c")
    assert isinstance(crowd.begin("e"), Begun)
    assert crowd.slots() == {"d", "e"}
