"""What a type checker says of calls in a user's program: `make types` refuses an `ignore` that is not needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from taskbridge import notify_event, notify_many
from taskbridge.errors import InvalidName

if TYPE_CHECKING:
    # Never run: these are the calls themselves.
    answer: str = notify_event("acme", "orders")
    sent: str = notify_event.delay("acme", pipeline="orders").id
    notify_event.delay(tenant="acme")
    notify_event.delay()  # type: ignore[call-arg]
    notify_event.delay(17)  # type: ignore[arg-type]
    notify_event.delay("acme", "orders", "more")  # type: ignore[call-arg]
    notify_event.delay("acme", pipline="orders")  # type: ignore[call-arg]
    notify_event(None)  # type: ignore[arg-type]
    notify_many(17)  # type: ignore[arg-type]


def test_a_call_that_no_type_checker_saw_is_refused_all_the_same() -> None:
    with pytest.raises(InvalidName, match="tenant"):
        notify_event.delay(17)  # type: ignore[arg-type]
