"""Make the shop's tables, as its migrations would: `python -m fastapi_shop.create_tables`."""

from __future__ import annotations

import os

from sqlalchemy import create_engine

from fastapi_shop.models import Base

if __name__ == "__main__":
    Base.metadata.create_all(create_engine(os.environ["SHOP_DATABASE_URL"]))
