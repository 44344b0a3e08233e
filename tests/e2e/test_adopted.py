"""A table of a shop, plain SQL, and a real worker."""

from __future__ import annotations

import pytest

from taskbridge.declaring.pipeline import Pipelines
from taskbridge.errors import ConfigurationError
from taskbridge.gate.inspector import Hold
from taskbridge.handlers.journal import JOURNAL
from taskbridge.integration.installation import check_journal
from taskbridge.store import adopt, adoption, unadopt
from tests.deployment import Deployment
from tests.inline import Inline
from tests.store.adopting import run


def test_the_journal_takes_nothing_of_an_adopted_table_also_after_it_was_given_up(deployment: Deployment) -> None:
    """Somebody forgot TASKBRIDGE_PIPELINES: what is pending is for the shop's own handler."""
    engine, inline = deployment.engine, Inline(deployment)
    inline.runtime.pipelines = Pipelines().beside(JOURNAL)
    run(engine, "CREATE TABLE invoices (number text PRIMARY KEY, company text)")
    adopt(engine, adoption(engine, "invoices", "company", ["number"]))
    run(engine, "INSERT INTO invoices VALUES ('1', 'acme')")
    for give_up in (False, True):
        if give_up:
            unadopt(engine, "invoices")
            deployment.redis.flushdb()
        deployment.notify_event.delay("acme")
        inline.run_all()
        assert deployment.gate.look("invoices", ["acme"])[0].hold is Hold.ASKED
    assert deployment.rows("SELECT FROM taskbridge.deliveries") == []
    assert deployment.rows("SELECT failures FROM taskbridge.sync_cursors") in ([(0,)], [])
    # No such worker starts.
    with pytest.raises(ConfigurationError, match="TASKBRIDGE_PIPELINES"):
        check_journal(inline.runtime)
