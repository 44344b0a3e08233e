"""The ORM session of one batch."""

from __future__ import annotations

from sqlalchemy import Connection
from sqlalchemy.orm import Session

__all__ = ["BatchSession"]


class BatchSession(Session):
    """A session within a batch's transaction: its commits and rollbacks apply to savepoints."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(
            connection, join_transaction_mode="create_savepoint", expire_on_commit=False, close_resets_only=False
        )

    def close(self) -> None:
        """Do nothing: `with batch.session as session:` must not undo what the worker is about to write."""

    def end(self) -> None:
        """Close it permanently: unflushed changes are dropped, and its objects are detached."""
        super().close()
