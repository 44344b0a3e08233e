"""A signal ends a loop also where Python drops what the signal raised."""

from __future__ import annotations

import subprocess
import sys

DROPPED = """
import os, signal, weakref
from taskbridge.cli import interrupts

class Thing:
    pass

interrupts.install()
thing = Thing()
# Python reports what is raised in a weakref's callback and goes on.
mark = weakref.ref(thing, lambda _: os.kill(os.getpid(), signal.SIGINT) or [None for _ in range(1000)])
del thing
print("goes on", flush=True)
try:
    interrupts.check()
except interrupts.Interrupted as caught:
    print(caught.exit_status)
"""


def test_a_signal_in_a_weakref_callback_is_not_forgotten() -> None:
    ended = subprocess.run([sys.executable, "-c", DROPPED], capture_output=True, text=True, check=False, timeout=60)
    assert "Interrupted" in ended.stderr, "the signal came inside the callback, and was dropped"
    assert ended.stdout.split("\n")[:2] == ["goes on", "130"]
