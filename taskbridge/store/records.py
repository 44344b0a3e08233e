"""Writing records. Whoever commits notifies."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Engine

from taskbridge.errors import InvalidInput
from taskbridge.names import check_tenant
from taskbridge.store.documents import unreadable
from taskbridge.store.queries import query

__all__ = ["json_text", "record_invoice"]

LONGEST_NUMBER = 200

# A NUL as JSON writes it: not the backslash, u, 0, 0, 0, 0 of a text, whose own backslash is doubled.
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


def record_invoice(
    engine: Engine, tenant: str, number: str, document: Mapping[str, Any], connection: Connection | None = None
) -> bool:
    """Write or update one invoice, in the transaction of `connection` or in one of its own.

    Returns:
        Whether anything changed. An invoice that is there with an equal document stays untouched: no revision, no
        event needed.

    Raises:
        InvalidName: the tenant is not allowed.
        InvalidInput: the number is empty, longer than 200 characters or holds a control character, or the document is
            no JSON object.
    """
    check_tenant(tenant)
    _check_number(tenant, number)
    where = f"tenant {tenant!r}, invoice {number!r}"
    if not isinstance(document, Mapping):
        raise InvalidInput(f"{where}: the document is {type(document).__name__}, pass a mapping (a JSON object)")
    values = {"tenant": tenant, "number": number, "document": json_text(where, document)}
    if connection is not None:
        return connection.exec_driver_sql(query("record_invoice"), values).first() is not None
    # One statement needs no transaction around it, which would be two more round trips.
    with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as own:
        return own.exec_driver_sql(query("record_invoice"), values).first() is not None


def _check_number(tenant: str, number: object) -> None:
    if not isinstance(number, str) or not number or len(number) > LONGEST_NUMBER or not number.isprintable():
        raise InvalidInput(
            f"tenant {tenant!r}: the invoice number {str(number)[:20]!r} is not allowed: "
            f"use a string of 1 to {LONGEST_NUMBER} printable characters"
        )


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"it holds a value of type {type(value).__name__}")


def json_text(where: str, document: object) -> str:
    """Return `document` as JSON that jsonb takes unchanged.

    Raises:
        InvalidInput: it is none; the message begins with `where`.
    """
    try:
        text = json.dumps(document, allow_nan=False, ensure_ascii=False, default=_plain)
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"{where}: the document is no JSON: {error}. Pass decimals and dates as strings") from None
    if _NUL.search(text):
        raise InvalidInput(f"{where}: the document holds a NUL character, which jsonb cannot: remove it")
    if why := unreadable(text):
        raise InvalidInput(f"{where}: no worker can read the document: {why}. Make it a string, or parts of their own")
    return text
