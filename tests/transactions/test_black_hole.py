"""Packets to Redis are dropped: whoever saved something waits no longer than it may, and no event loop stands still."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Final

import pytest
from sqlalchemy import Engine, make_url, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from taskbridge.embedded import Servers
from taskbridge.errors import Unavailable
from taskbridge.gate import Keys
from taskbridge.process.runtime import runtime_of
from taskbridge.producer.producer import Bridge
from taskbridge.settings import Settings
from tests.transactions.black_hole import BlackHole, nobody_accepts
from tests.transactions.conftest import producer
from tests.waiting import taking_at_most

TIMEOUT: Final = 0.5
BOUND: Final = 4.5
"""Seconds: less than one connection or one answer takes without the time-out."""
LONG_TIMEOUT: Final = 3.0
"""Seconds; on a busy machine a loop stands still for a part of them in any case."""
REQUESTS: Final = 8


@pytest.fixture(params=["no connection can be made", "one that was there is silent"])
def swallowed(request: pytest.FixtureRequest, servers: Servers, postgres_url: str, keys: Keys) -> Iterator[Bridge]:
    """A producer whose Redis is a black hole."""
    if request.param == "no connection can be made":
        with nobody_accepts() as url:
            made = producer(Settings(postgres_url, url, key_prefix=keys.prefix, notify_timeout=TIMEOUT))
            yield made
            runtime_of(made.app).close()
        return
    hole = BlackHole(servers.redis_url)
    made = producer(Settings(postgres_url, hole.url, key_prefix=keys.prefix, notify_timeout=TIMEOUT))
    runtime = runtime_of(made.app)
    while True:
        # A busy machine may need longer for the first connection.
        try:
            made.notify_event.delay("a", "orders")
            break
        except Unavailable:
            continue
    hole.open.set()
    yield made
    runtime.close()
    hole.close()


async def longest_stop(work: Callable[[], Awaitable[object]]) -> float:
    """Return for how long the event loop stood still at the most while `work` was done."""
    longest, done = 0.0, False

    async def measure() -> None:
        nonlocal longest
        while not done:
            before = time.monotonic()
            await asyncio.sleep(0.001)
            longest = max(longest, time.monotonic() - before - 0.001)

    measuring = asyncio.create_task(measure())
    await asyncio.sleep(0.05)
    await work()
    done = True
    await measuring
    return longest


def test_an_event_that_a_request_waits_for_without_an_end(
    swallowed: Bridge, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    verbs: list[Callable[[], object]] = [
        lambda: swallowed.notify_event.delay("a", "orders"),
        lambda: swallowed.notify_many(["a", "b"], "orders"),
        lambda: asyncio.run(swallowed.anotify_many(["a", "b"], "orders")),
        lambda: swallowed.record_event("alerts", {"level": "ERROR", "service": "s"}),
    ]
    # Without the bound: several connections of 5 s each, and 10 s for an answer. Each verb alone is bounded ...
    for verb in verbs:
        runtime_of(swallowed.app).events_rest_until = 0
        with taking_at_most(BOUND), pytest.raises(Unavailable, match="Redis"):
            verb()
    # ... and so are all events of one request.
    with taking_at_most(BOUND):
        for _ in range(5):
            for verb in verbs:
                with pytest.raises(Unavailable, match="Redis"):
                    verb()
    with caplog.at_level(logging.WARNING, "taskbridge"), taking_at_most(BOUND), engine.connect() as connection:
        for key in "123456789":
            swallowed.record("a", key, {}, source="orders", connection=connection, notify="after commit")
            connection.commit()
            assert swallowed.notify("a", "orders") is None
    assert sum("no event for tenant 'a'" in record.getMessage() for record in caplog.records) == 18


def test_an_event_loop_that_stands_still(swallowed: Bridge, postgres_url: str, engine: Engine) -> None:
    runtime = runtime_of(swallowed.app)

    async def request(number: int) -> None:
        async with AsyncSession(own) as session:
            await swallowed.arecord("a", str(number), {}, source="orders", connection=session, notify="after commit")
            await session.commit()
        assert await swallowed.anotify("a", "orders") is None
        assert await swallowed.arecord("b", str(number), {}, source="orders", notify="after commit")

    async def requests() -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(REQUESTS):
                group.create_task(request(number))

    async def measured() -> float:
        try:
            await request(-1)
            # Only what waits for Redis counts, and nothing that is done once.
            runtime.events_rest_until = 0
            return await longest_stop(requests)
        finally:
            await own.dispose()

    own = create_async_engine(make_url(postgres_url).set(drivername="postgresql+asyncpg"), pool_size=REQUESTS)
    runtime.settings = replace(runtime.settings, notify_timeout=LONG_TIMEOUT)
    with taking_at_most(6 * LONG_TIMEOUT):
        assert asyncio.run(measured()) < LONG_TIMEOUT / 2
    with engine.connect() as connection:
        found = connection.exec_driver_sql("SELECT count(*) FROM taskbridge.records").scalar()
    assert found == 2 * (REQUESTS + 1)


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
def test_a_commit_that_was_made_and_is_said_to_have_failed(
    swallowed: Bridge, postgres_url: str, engine: Engine, driver: str
) -> None:
    """Cancelled while the event waits for Redis, after the commit."""
    runtime = runtime_of(swallowed.app)
    runtime.settings = replace(runtime.settings, notify_timeout=4 * TIMEOUT)

    async def committed(session: AsyncSession, key: str) -> None:
        runtime.events_rest_until = 0
        await session.execute(text("SELECT 1"))
        await swallowed.arecord("a", key, {}, source="orders", connection=session, notify="after commit")
        await session.commit()

    async def goes_on(session: AsyncSession) -> None:
        await committed(session, "cancelled")
        reached.append("after the commit")
        await asyncio.sleep(4 * TIMEOUT)

    async def cancelled() -> None:
        async with AsyncSession(own) as session:
            async with asyncio.timeout(2 * TIMEOUT):
                await committed(session, "in time")
            assert (await session.execute(text("SELECT 7"))).scalar() == 7, "the session can be used"
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        async with AsyncSession(own) as session:
            asyncio.get_running_loop().call_later(2 * TIMEOUT, task.cancel)
            with pytest.raises(asyncio.CancelledError):
                await goes_on(session)
        task.uncancel()
        await own.dispose()
        # Whoever sends gives its connection back.
        await asyncio.sleep(5 * TIMEOUT)

    reached: list[str] = []
    own = create_async_engine(make_url(postgres_url).set(drivername=f"postgresql+{driver}"))
    with taking_at_most(30 * TIMEOUT):
        asyncio.run(cancelled())
    assert reached == ["after the commit"]
    with engine.connect() as connection:
        found = connection.exec_driver_sql("SELECT key FROM taskbridge.records WHERE key <> '0'").scalars()
    assert {"in time", "cancelled"} == set(found)


def test_events_that_are_tried_again_when_redis_is_back(
    servers: Servers, postgres_url: str, keys: Keys, bridge: Bridge
) -> None:
    hole = BlackHole(servers.redis_url)
    made = producer(Settings(postgres_url, hole.url, key_prefix=keys.prefix, notify_timeout=TIMEOUT))
    hole.open.set()
    assert made.notify("a", "orders") is None
    hole.open.clear()
    runtime_of(made.app).events_rest_until = 0
    deadline = time.monotonic() + 20
    while made.notify("a", "orders") is None:
        assert time.monotonic() < deadline
    assert runtime_of(bridge.app).gate.active("orders") == ["a"]
    runtime_of(made.app).close()
    hole.close()
