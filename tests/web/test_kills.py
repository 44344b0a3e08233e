"""What was answered with 2xx is delivered, whichever process is killed meanwhile."""

from __future__ import annotations

import pytest

from taskbridge.testing.servers import open_directory
from verification.web.kills import KILLED, survive


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_what_was_answered_is_delivered_once_though_each_process_is_killed() -> None:
    with open_directory() as folder:
        account = survive(folder, 400, 100)
    assert account.answered == 400
    assert set(account.killed) == set(KILLED)
    assert account.tries.total() > 400, "some were sent again"


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_receiver_that_answers_before_the_commit_is_found_out() -> None:
    with open_directory() as folder, pytest.raises(AssertionError, match="not downstream in its last version"):
        survive(folder, 400, 100, app="verification.web.orders_hasty:app")
