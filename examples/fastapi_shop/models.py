"""The shop's own table, without any trace of TaskBridge."""

from __future__ import annotations

from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

__all__ = ["Base", "Order"]


class Base(DeclarativeBase):
    """The shop's tables."""


class Order(Base):
    """A customer's order. Its version changes with each update."""

    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str] = mapped_column(index=True)
    item: Mapped[str]
    amount: Mapped[int]
    version: Mapped[int] = mapped_column()

    __mapper_args__ = {"version_id_col": version}  # noqa: RUF012 - as SQLAlchemy wants it
