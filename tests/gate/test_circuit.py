"""The circuit of a pipeline: its numbers, which the short walks of the model do not reach; and a cap on its runs.

`test_admission.py` of the model has the table: what opens it, who probes, what closes it.
"""

from __future__ import annotations

import pytest

from taskbridge.gate import Answer, Begun, Blame
from tests.gate.crowd import Crowd

RECORD, DOWNSTREAM = Blame.RECORD, Blame.DOWNSTREAM


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
