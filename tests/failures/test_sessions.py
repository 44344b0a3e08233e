"""A run whose session of Postgres falls silent ends, and its tenant and the worker's slot are free again."""

from __future__ import annotations

import os
import signal
import time

from taskbridge.declaring.batch import Batch
from taskbridge.store import connect
from tests.failures.drill import Drill


def test_a_session_that_falls_silent_under_the_handler_frees_tenant_and_slot(drill: Drill) -> None:
    url = drill.deployment.engine.url.render_as_string(hide_password=False)
    drill.runtime.engine = connect(url, statement_timeout=0.5)
    stopped: list[int] = []

    def write_and_lose_the_session(batch: Batch) -> None:
        pid = batch.connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
        if not stopped:
            stopped.append(pid)
            os.kill(pid, signal.SIGSTOP)

    drill.handle(write_and_lose_the_session)
    drill.save("acme", "a")
    drill.save("globex", "b")
    started = time.monotonic()
    try:
        assert drill.run_one()
        (status,) = drill.gate.look("invoices", ["acme"])
        assert status.held, "the tenant waits for its back-off"
        assert drill.run_one()
        assert drill.states("globex") == {"handled": 1}, "and the process goes on with others"
        assert time.monotonic() - started < 20
    finally:
        os.kill(stopped[0], signal.SIGCONT)
    drill.go_on()
    assert drill.states() == {"handled": 2}
    assert [tenant for tenant, _ in drill.calls] == ["acme", "globex", "acme"]
    drill.runtime.engine.dispose()
