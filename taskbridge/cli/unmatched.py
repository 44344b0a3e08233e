"""`taskbridge unmatched`: the records that no criterion matched, and their way back."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from taskbridge.cli import console, environment
from taskbridge.cli.options import data_dir_option, examples, json_option
from taskbridge.common.times import iso

if TYPE_CHECKING:
    from taskbridge.store import UnmatchedRecord

__all__ = ["unmatched"]

SHOWN_CHARACTERS: Final = 80
SHOWN_REASONS: Final = 20


@click.group(
    epilog=examples("taskbridge unmatched list log-alerts", "taskbridge unmatched match log-alerts"),
)
def unmatched() -> None:
    """The records that no criterion matched: stored, in no tenant's batch, and matched again when you say so."""


@unmatched.command(
    "list",
    short_help="List them with the reasons.",
    epilog=examples("taskbridge unmatched list log-alerts --json --limit 1000"),
)
@click.argument("pipeline", required=False)
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="At most so many, oldest first.")
@data_dir_option
@json_option
def list_them(pipeline: str | None, limit: int, data_dir: Path, as_json: bool) -> None:
    """List the records of PIPELINE that no criterion matched, oldest first, each with the reason.

    Messages that can never be recorded are among them; PIPELINE is the name that they gave, whether or not a pipeline
    is called so. Without PIPELINE, only count them for each name.

    Of an adopted table they are rows whose tenant or key is no allowed name; PIPELINE is its source.

    Exit status: 0, also where there are none; 2 PIPELINE has no criteria.
    """
    from taskbridge.store import count_unmatched, is_adopted, read_unmatched, unmatched_sources

    runtime = environment.session(data_dir, environment.light_runtime)
    if pipeline is None:
        _count(unmatched_sources(runtime.database), as_json=as_json)
        return
    count = count_unmatched(runtime.database, runtime.source_of(pipeline))
    if not count and not is_adopted(runtime.database, runtime.source_of(pipeline)):
        from taskbridge.producing.recording import criteria_of

        criteria_of(runtime, pipeline)
    records = list(islice(read_unmatched(runtime.database, runtime.source_of(pipeline)), limit))
    if as_json:
        console.emit_json({"pipeline": pipeline, "unmatched": count, "records": list(map(_as_json, records))})
    else:
        _show(pipeline, records, count)


@unmatched.command(
    "match",
    short_help="Match them again, after the criteria changed.",
    epilog=examples("taskbridge unmatched match log-alerts"),
)
@click.argument("pipeline")
@data_dir_option
@json_option
def match_them(pipeline: str, data_dir: Path, as_json: bool) -> None:
    """Match the unmatched records of PIPELINE again, with the criteria as they are now, and notify the tenants found.

    Each record is committed by itself: what was matched before a signal or a server that went away stays matched.

    Exit status: 0, also where some or all stay unmatched; 1 a server went away; 2 PIPELINE has no criteria.
    """
    from taskbridge.integration.app import app
    from taskbridge.producing.recording import criteria_of, match_again

    runtime = environment.session(data_dir, environment.runtime)
    criteria_of(runtime, pipeline)
    tenants, reasons = Counter[str](), Counter[str]()
    for one in match_again(app, pipeline):
        if one.tenant is not None:
            tenants[one.tenant] += 1
        else:
            reasons[str(one.reason)] += 1
    if as_json:
        counts = {"matched": tenants.total(), "unmatched": reasons.total()}
        console.emit_json({"pipeline": pipeline, **counts, "tenants": tenants, "reasons": dict(reasons.most_common())})
    else:
        _show_matched(tenants, reasons)


def _count(counts: dict[str, int], *, as_json: bool) -> None:
    if as_json:
        console.emit_json({"unmatched": counts})
        return
    terminal = console.stdout()
    if not counts:
        terminal.print("a criterion matched every record")
    for pipeline, count in counts.items():
        terminal.print(console.plain(f"{pipeline}: {count:,} unmatched"))


@unmatched.command(
    "discard",
    short_help="Give them up.",
    epilog=examples("taskbridge unmatched discard log-alerts ID ...", "taskbridge unmatched discard log-alerts --all"),
)
@click.argument("pipeline")
@click.argument("message_ids", metavar="[ID]...", nargs=-1)
@click.option("--reason", help="Those that have exactly this reason.")
@click.option("--all", "everything", is_flag=True, help="All that are unmatched.")
@data_dir_option
@json_option
def discard_them(
    pipeline: str, message_ids: tuple[str, ...], reason: str | None, everything: bool, data_dir: Path, as_json: bool
) -> None:
    """Give unmatched records of PIPELINE up: they are listed and matched no more, and `taskbridge prune` deletes them.

    A message that comes again with the id of a discarded one changes nothing, until that one is pruned.

    Exit status: 0, also where there were none; 1 a server went away; 2 nothing is chosen.
    """
    if everything == bool(message_ids or reason):
        raise click.UsageError("choose what to give up: IDs, --reason or both, or --all for all that are unmatched")
    runtime = environment.session(data_dir, environment.runtime)
    done = runtime.records_of(pipeline).discard(list(message_ids) or None, reason)
    if as_json:
        console.emit_json({"pipeline": pipeline, "discarded": sorted(done)})
    else:
        console.stdout().print(console.plain(f"{pipeline}: {len(done):,} discarded"))


def _as_json(record: UnmatchedRecord) -> dict[str, Any]:
    return record._asdict() | {"recorded_at": iso(record.recorded_at)}


def _show(pipeline: str, records: list[UnmatchedRecord], count: int) -> None:
    terminal = console.stdout()
    if not records:
        terminal.print(f"{pipeline}: a criterion matched every record")
        return
    table = console.Table(
        terminal, "message id", "id", "recorded at (UTC)", "reason", "payload", texts=("reason", "payload")
    )
    for one in records:
        at = f"{one.recorded_at.astimezone(UTC):%Y-%m-%d %H:%M:%S}"
        texts = (console.plain(one.reason), console.plain(_shortened(one.payload)))
        table.add_row(console.plain(one.message_id), str(one.id), at, *texts)
    terminal.print(table)
    if count > len(records):
        terminal.print(f"and {count - len(records):,} more (--limit shows more)")


def _shortened(payload: Any) -> str:
    text = json.dumps(payload, ensure_ascii=False)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."


def _show_matched(tenants: Counter[str], reasons: Counter[str]) -> None:
    terminal = console.stdout()
    terminal.print(f"{tenants.total():,} matched now, of {len(tenants):,} tenants; {reasons.total():,} stay unmatched")
    if not reasons:
        return
    table = console.Table(terminal, "reason", "records")
    for reason, count in reasons.most_common(SHOWN_REASONS):
        table.add_row(console.plain(reason), f"{count:,}")
    terminal.print(table)
    if len(reasons) > SHOWN_REASONS:
        terminal.print(f"and {len(reasons) - SHOWN_REASONS:,} more reasons (--json lists all)")
