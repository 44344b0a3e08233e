"""What each path costs. The one place for these figures; `make docs` prints them into docs/reference/costs.md."""

from __future__ import annotations

from typing import Final, NamedTuple

from verification.printing.printed import REFERENCE, Printed

PART: Final = Printed(REFERENCE / "costs.md", "costs")


TITLES: Final = (
    "path",
    "Redis round trips",
    "commands sent",
    "commands in scripts",
    "messages",
    "SQL round trips",
    "statements",
    "commits waited for",
    "commits not waited for",
)


class Cost(NamedTuple):
    """Redis: round trips, commands that the client sends, commands inside scripts, messages pushed.
    Postgres: round trips, statements, transactions whose commit waits for the disk, and those whose commit does not.
    """

    trips: int
    sent: int
    inside: int
    messages: int
    sql_trips: int
    statements: int
    durable: int
    relaxed: int


# Redis: round trips, sent, in scripts, messages; Postgres: round trips, statements, commits waited for, and not.
COSTS: Final[dict[str, Cost]] = {
    "first event": Cost(1, 1, 8, 1, 0, 0, 0, 0),
    "absorbed event": Cost(1, 1, 5, 0, 0, 0, 0, 0),
    "delayed event": Cost(1, 1, 7, 0, 0, 0, 0, 0),
    "100 first events at once": Cost(1, 1, 602, 100, 0, 0, 0, 0),
    "100 absorbed events at once": Cost(1, 1, 302, 0, 0, 0, 0, 0),
    "run of one record": Cost(2, 2, 20, 0, 2, 10, 1, 2),
    "run of one record, by the journal": Cost(2, 2, 20, 0, 7, 36, 1, 2),
    "run of one record, under a rate limit": Cost(3, 3, 26, 0, 2, 10, 1, 2),
    "run of three batches": Cost(5, 5, 20, 0, 7, 28, 3, 2),
    "run that fails": Cost(2, 2, 25, 0, 2, 10, 1, 2),
    "run that rejects its record": Cost(2, 2, 20, 0, 2, 10, 1, 2),
    "run of a record out of quarantine": Cost(2, 2, 20, 0, 2, 10, 1, 2),
    "16 runs of one record together": Cost(2, 32, 320, 0, 2, 75, 1, 17),
    "the end of a lease": Cost(1, 1, 7, 0, 0, 0, 0, 0),
    "late or doubled message": Cost(1, 1, 3, 0, 0, 0, 0, 0),
    "heartbeat": Cost(1, 1, 5, 0, 0, 0, 0, 0),
    "ticker, nobody due": Cost(1, 1, 7, 0, 0, 0, 0, 0),
    "ticker, 100 tenants due": Cost(2, 101, 1111, 100, 0, 0, 0, 0),
    "poll, nothing new": Cost(0, 0, 0, 0, 1, 5, 0, 0),
    "poll, 100 tenants with news": Cost(1, 1, 216, 1, 2, 10, 0, 1),
    "reconciliation, 100 tenants with pending records": Cost(1, 1, 210, 0, 3, 14, 0, 1),
    "record_invoice, new": Cost(0, 0, 0, 0, 1, 1, 1, 0),
    "record_invoice, unchanged": Cost(0, 0, 0, 0, 1, 1, 0, 0),
    "record_event": Cost(1, 1, 7, 1, 1, 1, 1, 0),
    "event of a pipeline with criteria": Cost(1, 1, 4, 0, 1, 1, 0, 0),
}


def markdown() -> str:
    """Return the table as Markdown."""
    lines = ["| " + " | ".join(TITLES) + " |", "| --- |" + " ---: |" * len(Cost._fields)]
    lines += [f"| {name} | " + " | ".join(map(str, cost)) + " |" for name, cost in COSTS.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    PART.write(markdown())
