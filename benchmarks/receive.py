"""What the sender of a webhook waits for: a receiver of ours beside the least that an endpoint does that commits.

The bare endpoint is Starlette, too: it parses the body, inserts one row and commits. It checks no signature, knows
neither versions nor repetitions, and notifies nobody. Both run under `taskbridge serve` on the same Postgres, each in
one process, and are measured alternately. A process of its own sends the requests.
"""

from __future__ import annotations

import json
import os
import re
import resource
import secrets
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from benchmarks.cpu import process, seconds_of
from benchmarks.posting import ANSWERED_WITHIN, Order, Posted
from benchmarks.report import Benchmark, Cell, Option, Report, Table, Target
from benchmarks.rounds import interleaved, median_ratio, summary
from benchmarks.stage import ROOT, stage, wait_until
from taskbridge.embedded import Guarded
from taskbridge.errors import Unavailable
from taskbridge.process.runtime import Runtime

__all__ = ["PATH", "RECEIVE", "SECRET", "SOURCE"]

SOURCE: Final = "bench-webhooks"
PATH: Final = f"/{SOURCE}"
SECRET: Final = "whsec_YmVuY2htYXJrcyBoYXZlIG5vIHNlY3JldHM="  # noqa: S105 - of servers that live for one measurement

OURS: Final = "TaskBridge"
BARE: Final = "bare endpoint"
APPS: Final = {OURS: "benchmarks.receive_apps:ours", BARE: "benchmarks.receive_apps:bare"}
CONNECTIONS: Final = 300
"""Connections of the sender: no request waits for one at a rate that is borne."""
WARM: Final = 200
LONGEST_MS: Final = 100.0
SLOWEST: Final = 0.25
"""The lowest of the rising rates, as a part of the steady one."""
FASTER: Final = 1.25
TRIES: Final = 2
"""Times that a rate is tried: a machine that others use as well stops now and then."""
SPARE_FILES: Final = 500

_TABLE: Final = (
    "CREATE TABLE bench_webhooks (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, tenant text NOT NULL, "
    "key text NOT NULL, document jsonb NOT NULL)"
)
_SLOWLY: Final = """
CREATE FUNCTION bench_slowly() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(1); RETURN NULL; END $$;
CREATE TRIGGER bench_slowly BEFORE INSERT ON taskbridge.received FOR EACH STATEMENT EXECUTE FUNCTION bench_slowly();
"""
_PLACE: Final = re.compile(r"running on http://127\.0\.0\.1:(\d+)")


class _Server(NamedTuple):
    port: int
    pid: int


class _Round(NamedTuple):
    """Milliseconds until the answers, answers per second, and the server's CPU time for each, in milliseconds."""

    median: float
    p99: float
    longest: float
    per_second: float
    cpu: float


class _Borne(NamedTuple):
    rate: float
    p99: float


class _Overloaded(NamedTuple):
    posted: Posted
    not_stored: int
    """Requests that were answered with 200 and whose record is not there."""


def _measure(rate: int, seconds: float, rounds: int, burst: int) -> Report:
    """Send at `rate` for `seconds` in each round, then at rising rates, then `burst` requests at once."""
    with _open_files(burst + SPARE_FILES), stage() as (runtime, directory):
        with runtime.engine.begin() as connection:
            connection.exec_driver_sql(_TABLE)
        with _served(runtime, directory, OURS) as ours, _served(runtime, directory, BARE) as bare:
            servers = {OURS: ours, BARE: bare}
            for server in servers.values():
                _post(server, WARM, rate)
            steady = {name: partial(_round, server, rate, seconds) for name, server in servers.items()}
            found = interleaved(steady, rounds)
            borne = _rising(servers, rate * SLOWEST, seconds)
            overloaded = _overloaded(runtime, ours, burst)
    return Report(
        {"rate": rate, "seconds": seconds, "rounds": rounds, "burst": burst},
        [_steady_table(found, rate), _rising_table(borne, seconds), _overload_table(overloaded, burst)],
        [
            Target("p99 at a steady rate, ratio to the bare endpoint", _ratio(found, 1), 1.5),
            Target(
                "requests/s, ratio to the bare endpoint",
                borne[OURS].rate / borne[BARE].rate if borne[BARE].rate else 0.0,
                0.9,
                at_least=True,
            ),
            Target("overload: answered with 200, and not stored", overloaded.not_stored, 0),
            Target("overload: 503 without Retry-After", overloaded.posted.without_retry_after, 0),
        ],
    )


def _round(server: _Server, rate: float, seconds: float) -> _Round:
    """Measure one steady rate."""
    one = process(server.pid)
    before = seconds_of(one)
    posted = _post(server, max(2, round(rate * seconds)), rate)
    if len(posted.milliseconds) < 2:
        raise Unavailable(f"{rate:g} requests/s are too many for this machine ({posted.answers}): lower --rate")
    cpu = (seconds_of(one) - before) * 1000
    count = len(posted.milliseconds)
    return _Round(*summary(posted.milliseconds), count / posted.seconds, cpu / count)


def _rising(servers: Mapping[str, _Server], rate: float, seconds: float) -> dict[str, _Borne]:
    """Return for each server the highest rate at which 99 of 100 requests were answered in time, and all with 200."""
    borne = dict.fromkeys(servers, _Borne(0.0, 0.0))
    left = list(servers)
    while left:
        for name in list(left):
            count = max(2, round(rate * seconds))
            tries = (_post(servers[name], count, rate) for _ in range(TRIES))
            p99 = next((summary(one.milliseconds).p99 for one in tries if _is_held(one, rate)), None)
            if p99 is None:
                left.remove(name)
            else:
                borne[name] = _Borne(rate, p99)
        rate *= FASTER
    return borne


def _is_held(posted: Posted, rate: float) -> bool:
    """Return whether all was answered with 200, at the rate at which it was due, and in time."""
    count = sum(posted.answers.values())
    return (
        posted.answers.get("200") == count
        and posted.seconds <= count / rate * 1.1 + LONGEST_MS / 1000
        and summary(posted.milliseconds).p99 <= LONGEST_MS
    )


def _overloaded(runtime: Runtime, server: _Server, burst: int) -> _Overloaded:
    """Send more at once than may wait, while each transaction of the receiver takes a second longer."""
    with runtime.engine.begin() as connection:
        connection.exec_driver_sql(_SLOWLY)
    posted = _post(server, burst, 0)
    with runtime.engine.connect() as connection:
        found = connection.exec_driver_sql("SELECT key FROM taskbridge.records WHERE source = %s", (SOURCE,)).scalars()
        return _Overloaded(posted, len(set(posted.stored) - set(found)))


def _post(server: _Server, count: int, rate: float) -> Posted:
    """Let another process send so many requests, with keys that nobody sent before."""
    order = Order(server.port, PATH, SECRET, secrets.token_hex(6), count, rate, CONNECTIONS if rate else count)
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.posting"],
        input=json.dumps(order._asdict()),
        stdout=subprocess.PIPE,
        cwd=ROOT,
        text=True,
        check=True,
        timeout=(count / rate if rate else 0) + 5 * ANSWERED_WITHIN,
    )
    return Posted(**json.loads(done.stdout))


@contextmanager
def _served(runtime: Runtime, directory: Path, name: str) -> Iterator[_Server]:
    """Serve an app as `taskbridge serve` does, in a process of its own."""
    log = directory / f"{APPS[name].partition(':')[2]}.log"
    environment = {
        **os.environ,
        **runtime.settings.as_environment(),
        "TASKBRIDGE_PIPELINES": "benchmarks.receive_apps",
        "PYTHONPATH": str(ROOT),
    }
    program = "from taskbridge.cli.main import main; main()"
    command = [sys.executable, "-c", program, "serve", APPS[name], "--port", "0"]
    with log.open("wb") as output, Guarded(command, output=output, environment=environment) as running:
        found: list[str] = []

        def listens() -> bool:
            text = log.read_text(errors="replace")
            if running.poll() is not None:
                raise Unavailable(f"the {name} does not start: {text}")
            found[:] = _PLACE.findall(text)
            return bool(found)

        wait_until(listens, f"the {name} listens", 60)
        yield _Server(int(found[0]), running.pid)


@contextmanager
def _open_files(count: int) -> Iterator[None]:
    """Let this process and those that it starts have so many open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY not in (soft, hard) and max(soft, hard) < count:
        raise Unavailable(f"{count:,} open files are needed and {hard:,} allowed: raise `ulimit -n`, or lower --burst")
    if soft != resource.RLIM_INFINITY and soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _ratio(found: Mapping[str, Sequence[_Round]], at: int) -> float:
    return median_ratio([one[at] for one in found[OURS]], [one[at] for one in found[BARE]])


def _steady_table(found: Mapping[str, Sequence[_Round]], rate: float) -> Table:
    rows: list[Sequence[Cell]] = [
        (name, *(median(one[at] for one in rounds) for at in range(5))) for name, rounds in found.items()
    ]
    return Table(
        f"{rate:,} requests/s: from a request's last byte to the end of the answer",
        ("", "median ms", "p99 ms", "longest ms", "answers/s", "server CPU, ms per request"),
        [*rows, ("ratio", *(_ratio(found, at) for at in range(5)))],
        "The bare endpoint has 10 connections to Postgres and commits each request by itself. It checks no signature.",
    )


def _rising_table(borne: Mapping[str, _Borne], seconds: float) -> Table:
    return Table(
        f"Rising rates, until p99 passes {LONGEST_MS:g} ms",
        ("", "requests/s", "p99 ms", f"ratio of {OURS} to it"),
        [(name, one.rate, one.p99, borne[OURS].rate / one.rate if one.rate else 0) for name, one in borne.items()],
        f"Each rate lasts {seconds:g} s and is {FASTER:g} times the one before. A rate that fails {TRIES} times ends "
        "the series. One process serves the requests.",
    )


def _overload_table(overloaded: _Overloaded, burst: int) -> Table:
    posted = overloaded.posted
    counts = [posted.answers.get(status, 0) for status in ("200", "503")]
    return Table(
        f"Overload: {burst:,} requests at once, with 1 s added to each transaction",
        ("", "200", "503", "503 without Retry-After", "200 and not stored", "p99 ms of 200"),
        [(OURS, *counts, posted.without_retry_after, overloaded.not_stored, summary(posted.milliseconds).p99)],
    )


RECEIVE: Final = Benchmark(
    "receive",
    "Webhooks are stored before they are answered, even under load.",
    "The p99 of the response time, divided by that of a bare endpoint that inserts one row.",
    "Measures how soon a webhook receiver answers after a request's last byte, and how many requests per second it "
    "can answer. The baseline is a bare Starlette endpoint on the same server, which inserts one row and commits. "
    "Then sends more requests at once than the receiver can hold. Those answered with 200 must be stored, and the "
    "others must be told when to retry.",
    _measure,
    (
        Option("rate", 1_000, 1, 100_000, "Requests per second in each round."),
        Option("seconds", 10.0, 0.1, 600.0, "Seconds of each rate."),
        Option("rounds", 5, 1, 100, "Rounds."),
        Option("burst", 5_000, 2, 50_000, "Requests at once."),
    ),
    {"rate": 200, "seconds": 0.25, "rounds": 1, "burst": 50},
    page={"seconds": 3.0, "rounds": 3},
    unmet="The bare endpoint checks no signature, knows no repeated webhooks, and sends no events.",
)
