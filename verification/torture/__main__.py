"""Run schedules: `python -m verification.torture --schedules 300 --seed 1 --arenas 2`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Collection
from pathlib import Path

from taskbridge.embedded.binaries import find_redis
from taskbridge.errors import Unavailable
from tests.memory import keep_temporary_files_in_memory
from verification.servers.starts import Missing, program
from verification.torture import report
from verification.torture.arenas import Broken, Order, in_arenas
from verification.torture.course import Result
from verification.torture.faults import FAULTS, SERVERS, available
from verification.torture.guards import GUARDS
from verification.torture.server_clock import compiler

SEEDS_PER_RUN = 1_000_000
MOST_TOLD = 20


def main(arguments: list[str]) -> int:
    """Run schedules, print a line of JSON for each and a table at the end; return 1 if anything is wrong."""
    options = _options(arguments)
    drawn = available(options.servers)
    order = Order(options.only or tuple(drawn), options.margin, options.without, options.keep, options.servers)
    try:
        for name in options.servers:
            program(name) if name == "pgbouncer" else find_redis()
    except (Missing, Unavailable) as error:
        sys.exit(f"torture: {error}")
    if left_out := [name for name in order.only if name not in drawn]:
        sys.exit(f"torture: not with --servers {','.join(options.servers) or 'of no kind'}: {', '.join(left_out)}")
    if compiler() is None:
        _say("not drawn: redis_clock, which needs Linux and a C compiler")
    first = options.seed * SEEDS_PER_RUN
    seeds = [options.schedule] if options.schedule is not None else [*range(first, first + options.schedules)]
    results: list[Result] = []
    broken = False
    try:
        for result in in_arenas(order, seeds, options.arenas):
            results.append(result)
            _tell(result, order)
            if result.violations and options.first:
                break
    except Broken as error:
        broken = True
        _say(f"BROKEN {error}")
    _say(f"\n{report.table(results, options.margin)}\n{report.summary(results)}")
    failed = [str(result.seed) for result in results if result.came_to_nothing]
    if failed:
        _say(f"The harness failed in schedules {', '.join(failed)}: see above.")
    if options.write is not None:
        options.write.write_text(report.page(results, options.seed, options.margin, options.servers), encoding="utf-8")
    return int(broken or any(result.violations for result in results))


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m verification.torture", description=__doc__)
    parser.add_argument("--schedules", type=int, default=300, help="how many (default: 300)")
    parser.add_argument("--seed", type=int, default=1, help="of all that is drawn (default: 1)")
    parser.add_argument("--arenas", type=int, default=1, help="how many run at the same time (default: 1)")
    parser.add_argument("--schedule", type=int, metavar="SEED", help="run the schedule with this seed again, alone")
    parser.add_argument("--only", type=_faults, default=(), metavar="FAULT,...", help="draw these only")
    parser.add_argument("--servers", type=_servers, default=(), metavar="KIND,...", help=f"add {' or '.join(SERVERS)}")
    parser.add_argument("--without", type=_guards, metavar="GUARD,...", help="take these guards out of the workers")
    parser.add_argument("--first", action="store_true", help="end at the first violation")
    parser.add_argument("--margin", type=float, default=1.0, help="seconds that each bound is given (default: 1)")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the page with the table to FILE")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep logs and ledgers in DIR")
    return parser.parse_args(arguments)


def _faults(text: str) -> tuple[str, ...]:
    return _names(text, "fault", FAULTS)


def _servers(text: str) -> tuple[str, ...]:
    return _names(text, "kind of server", SERVERS)


def _guards(text: str) -> str:
    return ",".join(_names(text, "guard", GUARDS))


def _names(text: str, what: str, known: Collection[str]) -> tuple[str, ...]:
    names = tuple(text.split(","))
    for name in names:
        if name not in known:
            raise argparse.ArgumentTypeError(f"no {what} is called {name!r}; there are: {', '.join(known)}")
    return names


def _tell(result: Result, order: Order) -> None:
    _say(json.dumps(result.as_dict()))
    for violation in result.violations[:MOST_TOLD]:
        _say(f"VIOLATION {violation}")
    if len(result.violations) > MOST_TOLD:
        _say(f"... and {len(result.violations) - MOST_TOLD} more")
    if result.violations:
        only = "" if order.only == tuple(available(order.servers)) else f" --only {','.join(order.only)}"
        only += f" --servers {','.join(order.servers)}" if order.servers else ""
        without = f" --without {order.without}" if order.without else ""
        _say(f"again: python -m verification.torture --schedule {result.seed}{only}{without}")


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    keep_temporary_files_in_memory()
    sys.exit(main(sys.argv[1:]))
