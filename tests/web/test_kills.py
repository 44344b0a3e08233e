"""What was answered with 2xx is delivered, whichever process is killed meanwhile, and the example accounts for it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from taskbridge.testing.servers import open_directory
from tests.deployment import ROOT
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


@pytest.mark.e2e
@pytest.mark.timeout(400)
def test_each_webhook_is_accounted_for() -> None:
    command = [sys.executable, "-m", "examples.whole_way", "--orders", "30"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=390, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    sent, runs, requests, orders, end = ended.stdout.splitlines()
    assert sent.startswith("150 webhooks sent, 150 answered with 2xx, ")
    assert runs.endswith(" runs of 5 customers")
    assert " requests downstream, answered " in requests
    assert orders == "26 of 30 orders delivered, 4 in quarantine"
    assert end == "The account adds up."
