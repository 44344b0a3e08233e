"""The states of a tenant's runner, and what the scripts answer.

Who is authoritative
    Postgres, always. The gate only answers "is a runner alive for this tenant?" and "may this runner stop?". Losing
    all of Redis costs time, never a record: rounds over Postgres find pending records and remind their tenants.

States, how each is left, and who frees it when its owner dies
    idle      no key at all. Left by an event or a reminder.
    waiting   a deadline and nothing else, so no worker slot is held. Left by an event or a reminder whose spacing is
              over, or by its deadline; any worker's ticker fires it.
    queued    a run message is on its way. Left by the run that begins with the current token. A lost message is
              published again by the ticker with the same token after `republish_after`, then twice as long each time. A
              worker that does not declare the pipeline declines it: then it is published again soon, by one that does.
    running   a run holds the token and moves its deadline on while it works. Left by its settle. A run that died stops
              moving its deadline: the ticker issues a new token and publishes, and from then on the old one opens
              nothing, neither here nor in Postgres. The next run learns of the death when it begins, and counts it as
              a failure of the batch that it reads.

Why no event is lost
    `notify` asks whether a runner is alive and `settle` asks whether it may stop; both are atomic and both look at the
    same counter. An event either finds no runner and starts one, or is counted before the runner may stop. The lease
    alone cannot decide that: an event that arrives while a handler outlasts the lease would be dropped.

Why no record is lost
    An event is a wake-up, and it may come before its record's commit, or never. So the tail looks at all commits and
    reminds each tenant with records that none of its runs has looked at. `queued` may ignore a reminder: a token begins
    once, and no run settles as done without a read after its own begin. Everywhere else it counts as an event. What
    was lost with Redis is found by base rounds, which ask Postgres alone (`taskbridge/worker/poller.py`).

Why a quiet runner ends without a run
    While it lingers nothing was notified and nothing reminded. What was committed since is found by the tail.

Why the first event does not wait
    The script that finds no runner publishes the run itself; no timer stands before it.

Why a lost reply loses no run
    A client that got no reply sends its call again, although Redis may have executed it. Each call has a nonce. A
    token that a call issued ends with it, and `begin` and `take` keep it beside their reply. So a call that is sent
    again gets the answer that was lost, and changes nothing. Without that, a run would count as dead that never
    learned that it had begun, and a run whose broker is elsewhere would be published by nobody.

Trust window
    A token belongs to one run: each run that is published gets a new one, and a message that is published again keeps
    its own. So nothing that comes late or twice (a message, or a command that a client sends again because its reply
    got lost) can begin or end another run. Tokens are ordered: the first 16 digits are the server's microseconds when
    it was issued, and a tenant's next token is always above its last. Postgres keeps the highest token that claimed a
    cursor and refuses a lower one, so a run that froze between `begin` and its claim cannot take the cursor back from
    its successor. Should the gate's time be lost with all of Redis, the claim is refused, and `stale` issues a
    token above the cursor's owner.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum

__all__ = ["Answer", "State"]


class State(StrEnum):
    """Where a tenant's runner stands. An idle tenant has no key in Redis."""

    IDLE = "idle"
    WAITING = "waiting"
    QUEUED = "queued"
    RUNNING = "running"


class Answer(IntEnum):
    """What a script answers. The numbers are given to the scripts by name when they are loaded."""

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
