"""The example that goes the whole way accounts for each webhook, and says so where it cannot."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from examples.whole_way.__main__ import VERSIONS, _account, _order
from examples.whole_way.downstream import Downstream, takes

ROOT = Path(__file__).resolve().parents[2]


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


@pytest.mark.parametrize("wrong", ["", "answer", "runs", "lost", "old", "quarantine"])
def test_an_account_that_does_not_add_up_is_told(wrong: str) -> None:
    orders = [_order(number, version) for number in range(10) for version in range(1, VERSIONS + 1)]
    good = [one for one in orders if takes(one) and one["version"] == VERSIONS]
    downstream = Downstream("", {(one["customer"], one["order"]): VERSIONS for one in good})
    if wrong == "lost":
        downstream.versions.popitem()
    if wrong == "old":
        downstream.versions[good[0]["customer"], good[0]["order"]] -= 1
    tries = [1] * (len(orders) - (wrong == "answer"))
    tenants = [{"runs": len(orders) if wrong == "runs" else 9, "quarantined": 10 - len(good) - (wrong == "quarantine")}]
    assert len(_account(orders, tries, tenants, downstream)) == bool(wrong)
