"""Events of who has committed already: what they let through."""

from __future__ import annotations

import pytest
from celery.exceptions import SoftTimeLimitExceeded

from taskbridge.integration.app import make_app
from taskbridge.process.runtime import runtime_of
from taskbridge.producer import notify as notifying
from taskbridge.settings import Settings


def test_a_task_is_told_that_its_time_is_over_while_it_notifies(monkeypatch: pytest.MonkeyPatch) -> None:
    app = make_app(Settings(postgres_url="postgresql://127.0.0.1:1/x", redis_url="redis://127.0.0.1:1/0")).app

    def interrupted(*_: object) -> None:
        raise SoftTimeLimitExceeded

    # Celery raises it by a signal, wherever the task is.
    monkeypatch.setattr(type(runtime_of(app)), "event_gate", property(interrupted))
    with pytest.raises(SoftTimeLimitExceeded):
        notifying.send_committed(app, {("invoices", "acme"): None})
