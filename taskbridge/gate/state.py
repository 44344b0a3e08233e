"""The states of a tenant's runner, and the answers of the scripts.

Who is authoritative
    Postgres, always. The gate only answers "is a runner alive for this tenant?" and "may this runner stop?". Losing
    all of Redis costs time, never a record: the reconciler finds pending records in Postgres and reminds their tenants.

States, how each is left, and what happens if its owner dies
    idle      no key at all. Left by an event or a reminder.
    waiting   a deadline and nothing else, so it occupies no worker slot. Left by an event or a reminder if the spacing
              allows it, or when its deadline passes; any worker's ticker acts on that.
    queued    a run message is on its way. Left by the run that begins with the current token. If the message is lost,
              the ticker publishes it again with the same token after `republish_after`, then twice as long each time. A
              worker that does not declare the pipeline declines it; a worker that does soon publishes it again.
    running   a run has the token and extends its deadline while it works. Left by its settle. A run that died no longer
              extends its deadline: the ticker issues and publishes a new token, and the old one is rejected from then
              on, both here and in Postgres. The next run learns of the death when it begins, and counts it as a failure
              of the batch that it reads.

Why no event is lost
    `notify` asks whether a runner is alive and `settle` asks whether it may stop; both are atomic and read the same
    counter. An event either finds no runner and starts one, or is counted before the runner may stop. The lease alone
    cannot decide that: an event that arrives while a handler outlasts the lease would be dropped.

Why no record is lost
    An event is a wake-up; it may arrive before its record is committed, or never. So the change poller looks at all
    commits and reminds each tenant with records that none of its runs has read. `queued` may ignore a reminder: a token
    begins once, and no run settles as done without a read after its own begin. In all other states it counts as an
    event. What was lost with Redis is found by the reconciler, which asks only Postgres
    (`taskbridge/worker/poller.py`).

Why a quiet runner ends without a run
    While it lingered, there was neither an event nor a reminder. The change poller finds what was committed since.

Why the first event does not wait
    The script that finds no runner publishes the run itself; no timer comes first.

Why a lost reply loses no run
    A client that gets no reply sends its call again, although Redis may have executed it. Each call has a nonce. A
    token issued by a call ends with the nonce, and `begin` and `take` store it with their reply. So a repeated call
    gets the answer that was lost, and changes nothing. Without that, a run that never learned that it had begun would
    count as dead, and nobody would publish a run whose broker is another server.

Trust window
    A token belongs to one run: each published run gets a new one, and a message that is published again keeps its own.
    So nothing that arrives late or twice (a message, or a command that a client repeats because its reply was lost) can
    begin or end another run. Tokens are ordered: the first 16 digits are the server's microseconds when the token was
    issued, and a tenant's next token is always higher than its last. Postgres keeps the highest token that claimed a
    cursor and rejects lower ones, so a run that froze between `begin` and its claim cannot take the cursor back from
    its successor. If the gate's time is lost with all of Redis, the claim is rejected, and `stale` issues a token above
    that of the cursor's owner.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum

__all__ = ["Answer", "State"]


class State(StrEnum):
    """The state of a tenant's runner. An idle tenant has no key in Redis."""

    IDLE = "idle"
    WAITING = "waiting"
    QUEUED = "queued"
    RUNNING = "running"


class Answer(IntEnum):
    """The answers of the scripts, which get these numbers by name when they are loaded."""

    STARTED = 1
    DELAYED = 2
    ABSORBED = 3
    BEGUN = 4
    REFUSED = 5
    KEPT = 6
    LOST = 7
    CONTINUED = 8
    LINGERING = 9
    FINISHED = 10
    HELD = 11
    REISSUED = 12
    PUBLISHED = 13
    REPUBLISHED = 14
    NOT_DUE = 15
    POSTPONED = 16
    ENDED = 17
    DECLINED = 18
