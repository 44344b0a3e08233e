"""A slot in the process of the tests."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from taskbridge.worker import group, slot
from tests.deployment import Deployment
from tests.slot.slots import Locks, Slot


@pytest.fixture
def inline(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> Slot:
    # A slow machine must not make short runs long.
    monkeypatch.setattr(slot, "SLICE", 30.0)
    monkeypatch.setattr(group, "ADVANCED_WITHIN", 30.0)
    return Slot(deployment)


@pytest.fixture
def threads(inline: Slot) -> Iterator[ThreadPoolExecutor]:  # noqa: ARG001 - it ends before the deployment
    with ThreadPoolExecutor() as pool:
        yield pool


@pytest.fixture
def locks(inline: Slot, threads: ThreadPoolExecutor) -> Iterator[Locks]:  # noqa: ARG001 - threads may wait for them
    with inline.deployment.engine.connect() as session:
        yield Locks(session)


@pytest.fixture
def never(threads: ThreadPoolExecutor) -> Iterator[threading.Event]:  # noqa: ARG001 - threads may wait for it
    """What a handler waits for that does not end; it ends with the test."""
    event = threading.Event()
    yield event
    event.set()
