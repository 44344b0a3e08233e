"""The example that goes the whole way accounts for each webhook."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

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
