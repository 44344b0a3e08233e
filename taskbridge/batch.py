"""What a handler is given: records of one tenant, and what it may ask about its own standing."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, overload

from sqlalchemy import Connection

__all__ = ["Batch", "Record"]

_NAMESPACE: Final = uuid.UUID("6b5f3a52-9d0c-5d9e-8a53-0c4a1f0d7c11")


@dataclass(frozen=True, slots=True)
class Record:
    """One row of work.

    `external_id` is the source's own key (an invoice number), unique within the tenant. `revision` counts the changes
    of the row from 1; a record that changed after it was handled comes again with a higher one.
    """

    pipeline: str
    tenant: str
    external_id: str
    revision: int
    document: Mapping[str, Any]

    @property
    def idempotency_key(self) -> str:
        """A UUID that is the same each time this revision of the record is handed over, and no other's."""
        parts = (self.pipeline, self.tenant, self.external_id, self.revision)
        return str(uuid.uuid5(_NAMESPACE, json.dumps(parts)))


class Batch(Sequence[Record]):
    """Records of one tenant, oldest first, never another tenant's.

    A handler that returns has handled them all; one that raises has handled none, and is called again.
    """

    def __init__(
        self,
        pipeline: str,
        tenant: str,
        token: str,
        records: Sequence[Record],
        *,
        connect: Callable[[], Connection],
        owned: Callable[[], bool],
    ) -> None:
        self.pipeline: Final = pipeline
        self.tenant: Final = tenant
        self.token: Final = token
        self._records = tuple(records)
        self._connect = connect
        self._owned = owned

    @property
    def connection(self) -> Connection:
        """The connection of the transaction that advances the cursor, opened when it is first asked for.

        What is written through it takes effect exactly once: it commits together with the cursor or not at all. Do not
        commit or roll back; the runner does.
        """
        return self._connect()

    @property
    def owned(self) -> bool:
        """Whether the runner still holds its tenant, as far as this process can know without asking.

        False once a heartbeat was refused, or when none was confirmed in time. A long handler that sees False should
        stop: another runner is taking over, and this batch will not be advanced past it.
        """
        return self._owned()

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Record]: ...
    def __getitem__(self, index: int | slice) -> Record | Sequence[Record]:
        return self._records[index]

    def __len__(self) -> int:
        return len(self._records)

    def __repr__(self) -> str:
        return f"<Batch {self.pipeline} {self.tenant!r}: {len(self)} records>"
