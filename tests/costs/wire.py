"""Counts what goes over the wire to the real Postgres.

Round trips cannot be told from the times at which bytes pass, so what counts is where the client asks for an answer: a
simple query, a Sync, or a Flush that follows something to be answered. (Of a pipeline's statements none is answered
before one of these.) What the server did is counted from its answers: one for each statement, BEGIN and COMMIT too.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Engine, event, inspect

from tests.tracing import Message, Trace

ASKS: Final = ("Query", "Sync", "Flush")

# Each transaction that changed a row says, as it commits, whether it waits for the disk; the notice is traced.
TELL: Final = """
CREATE FUNCTION tell_commit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE NOTICE USING MESSAGE = concat_ws(' ', 'commits', pg_current_xact_id(), current_setting('synchronous_commit'));
    RETURN NULL;
END $$
"""
TELL_OF: Final = """
CREATE CONSTRAINT TRIGGER tell_commit AFTER INSERT OR UPDATE OR DELETE ON taskbridge.{table}
DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION tell_commit()
"""


def tell_commits(engine: Engine) -> None:
    """Let each transaction that changes a row say how it commits."""
    with engine.begin() as connection:
        connection.exec_driver_sql(TELL)
        for table in inspect(connection).get_table_names("taskbridge"):
            # A partition gets it with its table.
            if table.startswith("runs_"):
                continue
            connection.exec_driver_sql(TELL_OF.format(table=table))


class Wire:
    """Round trips of an engine's connections, the tag of each statement, and `synchronous_commit` by transaction."""

    def __init__(self, engine: Engine, directory: Path) -> None:
        self._traces: list[Trace] = []

        def connected(driver: Any, _: object) -> None:
            self._traces.append(Trace(driver.pgconn, directory / f"trace-{len(self._traces)}"))

        event.listen(engine, "connect", connected)

    def read(self) -> None:
        """Count what there was since the last time."""
        self.round_trips = 0
        self.statements: list[str] = []
        self.commits: dict[str, str] = {}
        for trace in self._traces:
            self._count(trace.end())
            trace.begin()

    def _count(self, messages: list[Message]) -> None:
        unanswered = False
        for message in messages:
            if message.is_ours:
                self.round_trips += message.name in ("Query", "Sync") or (message.name == "Flush" and unanswered)
                unanswered = message.name not in ASKS
            elif message.name in ("CommandComplete", "EmptyQueryResponse", "ErrorResponse"):
                self.statements.append(message.body.strip(' "') or message.name)
            elif message.name == "NoticeResponse" and (found := re.search(r'"commits (\d+) (\w+)"', message.body)):
                self.commits[found[1]] = found[2]
