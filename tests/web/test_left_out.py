"""A dashboard that does not declare every pipeline denies nothing of what the others have."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from taskbridge.store import record
from tests.deployment import Deployment
from tests.store.adopting import run
from tests.web.visiting import Visitor, declare, visiting

SAID = "pipelines that are not declared in TASKBRIDGE_PIPELINES are left out: mail (1 tenant)"
ALL_WELL = "Nothing is failing, and nothing is in quarantine."
LOOKED = (
    "INSERT INTO taskbridge.tails (pipeline, kind, snapshot) "
    "SELECT p, 'tail', pg_current_snapshot() FROM unnest(ARRAY['mail', 'sms']) p"
)
FAILS = (
    "INSERT INTO taskbridge.sync_cursors (pipeline, tenant, failures, last_error, failed_at) "
    "VALUES ('mail', 'acme', 3, 'ConnectionError: refused', now())"
)
QUARANTINED = (
    "INSERT INTO taskbridge.quarantine (pipeline, tenant, external_id, revision, reason) "
    "SELECT 'mail', tenant, key, revision, 'ValueError: bad' FROM taskbridge.records"
)


@pytest.fixture
def visitor(deployment: Deployment) -> Iterator[Visitor]:
    """Visit the dashboard of a process that declares `sms` alone, where a tenant of `mail` fails."""
    declare(deployment, "mail", "sms")
    record(deployment.engine, "mail", "acme", "ML-a", {})
    for statement in (LOOKED, FAILS, QUARANTINED):
        run(deployment.engine, statement)
    declare(deployment, "sms")
    with visiting(deployment) as one:
        yield one


def test_a_page_names_what_it_did_not_look_at_and_denies_nothing_of_it(
    visitor: Visitor, deployment: Deployment
) -> None:
    assert SAID in visitor.get("/").text
    paths = ("/failing", "/failing?pipeline=sms", "/tenants", "/tenants?by=events")
    for path in paths:
        page = visitor.get(path).text
        assert page.count(f'<p class="said warned"><bdi>{SAID}') == 1, path
        assert ALL_WELL not in page
    declare(deployment, "mail", "sms")
    for path in paths:
        assert "are left out" not in visitor.get(path).text.partition("<main")[2], path
    assert "ValueError: bad" in visitor.get("/failing").text
    assert ALL_WELL in visitor.get("/failing?pipeline=sms").text


def test_a_search_finds_what_they_have(visitor: Visitor) -> None:
    for text in ("ML-a", "acme"):
        page = visitor.get("/record", q=text).text
        assert "Nothing found" not in page
        assert "pipeline=mail" not in page, "there is no page of it here"
