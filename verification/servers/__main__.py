"""Run the rows, and print what they show into docs/reference/versions.md."""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from taskbridge.embedded import Servers
from taskbridge.testing.servers import migrated_template, open_directory
from tests.memory import keep_temporary_files_in_memory
from verification.printing.printed import REFERENCE, Printed
from verification.servers.rows import ROWS, Ground, Row
from verification.servers.starts import Missing
from verification.servers.trial import Result, refusal, trial
from verification.torture.servers import PostgresHere

PART = Printed(REFERENCE / "versions.md", "servers")
HEAD = (
    "| server | version | what failed | records handled once | longest wait, s | `taskbridge doctor` afterwards | on |",
    "| --- | --- | --- | --- | ---: | --- | --- |",
)


def run(row: Row, directory: Path, postgres: PostgresHere, template: str) -> tuple[str, Result]:
    """Run a row; return the version of its server, and what it has shown. If that is wrong, print the logs."""
    directory.mkdir(mode=0o755)
    version = ""
    with ExitStack() as stack:
        try:
            stage = row.open(ground := Ground(stack, directory, postgres, template))
            version = stage.version
            result = refusal(stage, row.refused, directory) if row.refused else trial(stage, ground.url, directory)
        except Missing as missing:
            result = Result(True, f"skipped: {missing}", "", [])
        except Exception:
            result = Result(False, traceback.format_exc(), "", [])
    if not result.is_as_expected:
        for log in sorted(directory.glob("*.log")):
            sys.stdout.write(f"--- {log.name}\n{log.read_text()[-4000:]}\n")
    return version, result


def write(lines: dict[str, str]) -> None:
    """Write lines by what they begin with; others stay, in the order of the rows."""
    shown = {_begin(line): line for line in PART.shown().splitlines()[len(HEAD) :]} | lines
    order = [_begin_of(row) for row in ROWS]
    PART.write("\n".join((*HEAD, *(shown[name] for name in order if name in shown))))


def _begin(line: str) -> str:
    server, middle = line.split(" | ")[0:3:2]
    return f"{server} | {middle}"


def _begin_of(row: Row) -> str:
    return f"| {row.server} | {row.middle}"


def main(arguments: Sequence[str]) -> int:
    """Run all rows or some; the status is 1 if one has not shown what it should."""
    parser = argparse.ArgumentParser(prog="python -m verification.servers", description=__doc__)
    names = [row.name for row in ROWS]
    parser.add_argument("--only", action="append", choices=names, metavar="NAME", help=", ".join(names))
    chosen = parser.parse_args(arguments).only
    lines, failed = dict[str, str](), []
    with open_directory() as directory, ExitStack() as stack:
        settings = {"track_commit_timestamp": "on", "unix_socket_directories": str(directory / "postgres")}
        postgres = PostgresHere(directory, settings)
        stack.callback(postgres.close)
        postgres.start()
        template = stack.enter_context(migrated_template(Servers(postgres.url, "")))
        for row in [row for row in ROWS if chosen is None or row.name in chosen]:
            version, result = run(row, directory / row.name, postgres, template)
            doctor = [f"{check}: {text}" for check, text in result.doctor]
            wrong = "" if result.is_as_expected else "WRONG: "
            sys.stdout.write(f"{row.name}: {wrong}{'; '.join((result.once, result.latest, *(doctor or ['ok'])))}\n")
            sys.stdout.flush()
            if not result.is_as_expected:
                failed.append(row.name)
            elif version:
                checks = "; ".join(dict(result.doctor)) or "ok"
                cells = (row.server, version, row.middle, result.once, result.latest, checks, time.strftime("%Y-%m-%d"))
                lines[_begin_of(row)] = f"| {' | '.join(cells)} |"
    write(lines)
    return bool(failed)


if __name__ == "__main__":
    keep_temporary_files_in_memory()
    sys.exit(main(sys.argv[1:]))
