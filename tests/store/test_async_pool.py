"""A session that gives no answer, or whose caller has gone, costs the pool nothing but this session."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import Engine

from taskbridge.store import AsyncPool, Incoming, NoAnswer, forget_received, receive_statement, receiving
from tests.deployment import Deployment

ONE = receive_statement(Incoming("orders", None, "acme", "1", None, "{}"))


@pytest.mark.parametrize("ends", ["no answer", "cancelled"])
def test_a_statement_that_ends_without_an_answer(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    monkeypatch.setattr(receiving, "SESSIONS", 1)
    monkeypatch.setattr(receiving, "LOCK_TIMEOUT", "60s")

    async def use(engine: Engine) -> None:
        pool = AsyncPool(engine)
        try:
            for _ in range(3):
                await pool.open()
                with engine.connect() as connection:
                    connection.exec_driver_sql("LOCK TABLE taskbridge.records IN ACCESS EXCLUSIVE MODE")
                    if ends == "no answer":
                        pool._idle[-1].bounded.answer_timeout = 0.2
                        with pytest.raises(NoAnswer):
                            await pool.execute(ONE)
                    else:
                        with pytest.raises(TimeoutError):
                            await asyncio.wait_for(pool.execute(ONE), 0.2)
                    assert pool._idle == []
                assert await pool.execute(ONE, ONE) != []
        finally:
            await pool.close()

    asyncio.run(use(deployment.engine))


def test_statements_of_the_engine_do_not_get_in_the_way(deployment: Deployment) -> None:
    for _ in range(10):
        forget_received(deployment.engine)  # psycopg prepares a statement at its fifth execution

    async def use() -> None:
        pool = AsyncPool(deployment.engine)
        try:
            for number in range(10):
                await pool.execute(receive_statement(Incoming("orders", None, "acme", str(number), None, "{}")))
        finally:
            await pool.close()

    asyncio.run(use())
