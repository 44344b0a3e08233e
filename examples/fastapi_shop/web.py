"""The shop's HTTP API."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

from fastapi_shop.models import Order
from fastapi_shop.sync import bridge

__all__ = ["app"]


class Wish(BaseModel):
    """The content of an order."""

    item: str
    amount: int


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Open and close connections to the shop's database."""
    engine = create_async_engine(os.environ["SHOP_DATABASE_URL"], pool_pre_ping=True)
    app.state.session = async_sessionmaker(engine, expire_on_commit=False)
    yield
    await engine.dispose()


app = FastAPI(lifespan=lifespan)


@app.post("/customers/{customer}/orders", status_code=201)
async def place(customer: str, wish: Wish, request: Request) -> int:
    """Place an order; return its number."""
    async with request.app.state.session.begin() as session:
        order = Order(customer=customer, item=wish.item, amount=wish.amount)
        session.add(order)
        await bridge.anotify(customer, "orders", connection=session)
    return order.id


@app.put("/orders/{number}")
async def change(number: int, wish: Wish, request: Request) -> int:
    """Change an order; return its version."""
    async with request.app.state.session.begin() as session:
        order = await session.get(Order, number, with_for_update=True)
        if order is None:
            raise HTTPException(404)
        order.item, order.amount = wish.item, wish.amount
        await bridge.anotify(order.customer, "orders", connection=session)
    return order.version


@app.delete("/orders/{number}", status_code=204)
async def cancel(number: int, request: Request) -> None:
    """Cancel an order."""
    async with request.app.state.session.begin() as session:
        order = await session.get(Order, number, with_for_update=True)
        if order is not None:
            await session.delete(order)
            await bridge.anotify(order.customer, "orders", connection=session)
