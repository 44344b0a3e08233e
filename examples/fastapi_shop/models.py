"""The shop's own table. TaskBridge does not occur here."""

from __future__ import annotations

from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

__all__ = ["Base", "Order"]


class Base(DeclarativeBase):
    """The shop's tables."""


class Order(Base):
    """What a customer has ordered. Its version is another number after each change."""

    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str] = mapped_column(index=True)
    item: Mapped[str]
    amount: Mapped[int]
    version: Mapped[int] = mapped_column()

    __mapper_args__ = {"version_id_col": version}  # noqa: RUF012 - as SQLAlchemy wants it
