"""Handlers that are coroutines are run; handlers that are generators are refused."""

from __future__ import annotations

import asyncio
import functools
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from celery.exceptions import SoftTimeLimitExceeded

from taskbridge.declaring.batch import Batch
from taskbridge.declaring.pipeline import Pipeline
from taskbridge.declaring.policy import LatencyNeutral
from taskbridge.errors import HandlerMistake, InvalidPolicy
from taskbridge.handlers.journal import journal
from tests.failures.drill import BAD, NUMBERS, Drill


def test_a_coroutine_function_is_run_and_what_it_raises_is_a_failure(drill: Drill) -> None:
    loops = set()

    async def handler(batch: Batch) -> None:
        await asyncio.sleep(0)
        loops.add(id(asyncio.get_running_loop()))
        if any(record.external_id == BAD for record in batch):
            raise ValueError("bad")
        batch.reject(batch[0], "no") if batch[0].external_id == "00" else None
        journal(batch)

    drill.handle(handler, max_attempts=2)
    drill.save("acme", *NUMBERS)
    drill.go_on()
    assert drill.states() == {"handled": 18, "quarantined": 2}
    assert len(drill.deployment.deliveries()) == 18
    assert len(loops) == 1, "one loop for the process"


class Handler:
    async def __call__(self, batch: Batch) -> None:
        await asyncio.sleep(0)
        journal(batch)


async def _partial(_: str, batch: Batch) -> None:
    await Handler()(batch)


@pytest.mark.parametrize(
    "handler",
    [lambda batch: _partial("a", batch), functools.partial(_partial, "a"), Handler()],
    ids=["lambda", "partial", "object"],
)
def test_what_returns_a_coroutine_is_run(drill: Drill, handler: Any) -> None:
    drill.handle(handler)
    drill.save("acme", "a")
    drill.go_on()
    assert drill.deployment.deliveries() == [("acme", "a")]


def test_a_task_of_a_coroutine_that_exits_ends_no_loop(drill: Drill) -> None:
    async def exits() -> None:
        sys.exit(1)

    async def handler(batch: Batch) -> None:
        if len(drill.calls) == 1:
            await asyncio.create_task(exits())
        journal(batch)

    drill.handle(handler)
    drill.save("acme", "a")
    drill.go_on()
    assert [type(error) for error in drill.errors] == [HandlerMistake]
    assert drill.states() == {"handled": 1}


@pytest.mark.parametrize("where", ["the main thread", "another thread"])
def test_a_coroutine_is_cancelled_at_its_soft_time_limit_in_every_thread(drill: Drill, where: str) -> None:
    ended: list[str] = []

    async def handler(_: Batch) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            # Longer than a handler that is no coroutine has before it is interrupted again.
            await asyncio.sleep(1.2)
            ended.append("cancelled")

    drill.handle(handler, soft_time_limit=0.1)
    drill.save("acme", "a")
    work = functools.partial(drill.go_on, lambda: bool(drill.errors))
    if where == "the main thread":
        work()
    else:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join(timeout=30)
    assert ended == ["cancelled"]
    assert [type(error) for error in drill.errors] == [SoftTimeLimitExceeded]


def generator(batch: Batch) -> Iterator[Batch]:
    yield batch


async def async_generator(batch: Batch) -> AsyncIterator[Batch]:
    yield batch


class Generator:
    def __call__(self, batch: Batch) -> Iterator[Batch]:
        yield batch


@pytest.mark.parametrize(
    "handler", [generator, async_generator, functools.partial(generator), Generator()], ids=lambda one: str(type(one))
)
def test_a_generator_function_is_refused_at_its_declaration(handler: Any) -> None:
    with pytest.raises(InvalidPolicy, match=r"pipeline invoices: the handler .* is a generator function"):
        Pipeline("invoices", handler, LatencyNeutral(), 500)
