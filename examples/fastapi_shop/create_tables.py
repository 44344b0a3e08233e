"""Create the shop's tables, as its migrations would: `python -m fastapi_shop.create_tables`."""

from __future__ import annotations

import asyncio
import os

from sqlalchemy.ext.asyncio import create_async_engine

from fastapi_shop.models import Base


async def create_tables() -> None:
    """Create missing tables."""
    engine = create_async_engine(os.environ["SHOP_DATABASE_URL"])
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    await engine.dispose()


if __name__ == "__main__":
    asyncio.run(create_tables())
