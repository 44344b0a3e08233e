"""The two servers of the benchmark of webhooks: a receiver of ours, and the least that commits what it takes."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import psycopg
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from benchmarks.receive import PATH, SECRET, SOURCE
from taskbridge.declaring.batch import Batch
from taskbridge.declaring.pipeline import pipeline
from taskbridge.web import StandardWebhooks, Webhook, receiver

__all__ = ["bare", "ours"]

CONNECTIONS: Final = 10
"""Connections to Postgres of the bare endpoint."""
_INSERT: Final = "INSERT INTO bench_webhooks (tenant, key, document) VALUES (%s, %s, %s)"


@pipeline(SOURCE)
def nothing(_: Batch) -> None:
    """Stand for a handler: the receiver tells Redis of each record, and no worker runs."""


ours = receiver(
    Webhook(
        SOURCE,
        StandardWebhooks(SECRET),
        tenant="$.tenant",
        key="$.key",
        version="$.version",
        document="$.order",
        path=PATH,
    )
)


@asynccontextmanager
async def _connected(app: Starlette) -> AsyncIterator[None]:
    app.state.free = asyncio.Queue()
    url = os.environ["TASKBRIDGE_POSTGRES_URL"]
    opened = [await psycopg.AsyncConnection.connect(url, autocommit=True) for _ in range(CONNECTIONS)]
    for connection in opened:
        app.state.free.put_nowait(connection)
    yield
    for connection in opened:
        await connection.close()


async def _insert(request: Request) -> JSONResponse:
    payload = json.loads(await request.body())
    free = request.app.state.free
    connection = await free.get()
    try:
        await connection.execute(_INSERT, (payload["tenant"], payload["key"], json.dumps(payload["order"])))
    finally:
        free.put_nowait(connection)
    return JSONResponse({"new": True})


bare = Starlette(routes=[Route(PATH, _insert, methods=["POST"])], lifespan=_connected)
