"""A document stands in Postgres and nowhere else: in no error's text, no traceback and no `repr`."""

from __future__ import annotations

import traceback
from collections.abc import Callable

import pytest
from celery import Celery
from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

import taskbridge
from taskbridge.declaring.criteria import Match
from taskbridge.errors import InvalidInput
from taskbridge.settings import Settings
from taskbridge.store import record_invoice
from taskbridge.store.records import execute, message_statement
from tests.store.adopting import run

MARK = "the-patients-name"
BROKEN = {
    "a constraint, whose detail has the row": "ALTER TABLE taskbridge.records ADD CHECK (tenant <> 'acme')",
    "a trigger, whose context has its statement": """
        CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN EXECUTE 'SELECT 1/(length(' || quote_literal(NEW::text) || ') * 0)'; RETURN NEW; END $$;
        CREATE TRIGGER refuse AFTER INSERT ON taskbridge.records FOR EACH ROW EXECUTE FUNCTION refuse()
    """,
    "no table": "DROP TABLE taskbridge.records CASCADE",
    "no column": "ALTER TABLE taskbridge.records RENAME COLUMN tenant TO owner",
    "an index that says what is there": "CREATE UNIQUE INDEX one ON taskbridge.records ((document))",
}


@pytest.mark.parametrize("broken", list(BROKEN))
def test_a_statement_that_fails_quotes_no_document(engine: Engine, broken: str) -> None:
    run(engine, BROKEN[broken])
    if "index" in broken:
        record_invoice(engine, "globex", "0", {"name": MARK})
    message = message_statement("alerts", "1", f'{{"name": "{MARK}"}}', Match("acme", 1, "c"))
    with engine.connect() as connection:
        for given in (None, connection):
            for write in (
                lambda given: record_invoice(engine, "acme", "1", {"name": MARK}, given),
                lambda given: execute(engine, message, given),
            ):
                with pytest.raises(DBAPIError) as failed:
                    write(given)
                assert_silent(failed.value)
                connection.rollback()


def assert_silent(error: BaseException) -> None:
    assert MARK not in str(error)
    assert MARK not in "".join(traceback.format_exception(error))


@pytest.mark.parametrize(
    "document",
    [{"name": MARK, "at": object()}, {"name": MARK, "x": float("nan")}, {"name": MARK + chr(0xD800)}, [MARK]],
    ids=["no JSON", "no number", "no text", "no object"],
)
def test_a_document_that_is_refused_is_not_quoted(engine: Engine, document: object) -> None:
    with pytest.raises(InvalidInput) as refused:
        record_invoice(engine, "acme", "1", document)  # type: ignore[arg-type]
    assert_silent(refused.value)


@pytest.mark.parametrize(
    "send",
    [
        lambda task: task.delay("alerts", {"name": MARK}),
        lambda task: task.apply_async(("alerts",), {"payload": {"name": MARK}}, countdown=1),
    ],
    ids=["delay", "apply_async"],
)
def test_a_message_of_record_event_shows_no_document_to_logs_events_and_flower(send: Callable[..., object]) -> None:
    app = Celery("shop", broker="memory://", set_as_current=False)
    taskbridge.install(app, Settings(postgres_url="postgresql://h/d", redis_url="redis://h"))
    send(app.tasks["taskbridge.record_event"])
    with app.connection_for_read() as connection:
        message = connection.SimpleQueue("taskbridge.first").get(timeout=5)
    assert MARK in str(message.body), "the worker gets it"
    assert MARK not in str(message.headers)
