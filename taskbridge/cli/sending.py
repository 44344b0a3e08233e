"""Send a file's invoices as a burst of webhooks would: commit each one, then notify its tenant if anything changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taskbridge.cli import console
from taskbridge.cli.csv_invoices import Invoice, InvoiceFile, read_invoices
from taskbridge.cli.interrupts import uninterrupted
from taskbridge.declaring.pipeline import INVOICES
from taskbridge.integration.app import app, notify_event, record_invoice
from taskbridge.process.runtime import runtime_of

__all__ = ["Sending", "check_pipeline", "list_problems", "read", "send"]


@dataclass(slots=True)
class Sending:
    """How far a file got. Written invoices are committed, new or changed; `notified` counts the events of those."""

    file: InvoiceFile
    written: int = 0
    unchanged: int = 0
    notified: int = 0

    @property
    def done(self) -> int:
        """How many invoices were looked at."""
        return self.written + self.unchanged

    @property
    def complete(self) -> bool:
        """Whether all were, and every change was notified."""
        return self.done == len(self.file.invoices) and self.notified == self.written

    def how_far(self) -> str:
        """Say what is done of an import that was cut short, and what to do."""
        text = f"{self.done} of {len(self.file.invoices)} invoices were sent ({self.written} written, "
        text += f"{self.unchanged} unchanged)"
        if self.notified < self.written:
            text += "; the last one is written and its tenant not notified, a worker finds it all the same"
        return f"{text}. Import the file again for the rest: what is there stays as it is"

    def as_json(self) -> dict[str, Any]:
        """Return the counts, and every problem."""
        invoices = self.file.invoices
        return {
            "invoices": len(invoices),
            "written": self.written,
            "unchanged": self.unchanged,
            "events": self.notified,
            "credit_notes": sum(invoice.document["kind"] == "credit_note" for invoice in invoices),
            "tenants": len({invoice.tenant for invoice in invoices}),
            "held_back": self.file.held_back,
            "problems": len(self.file.problems),
            "problem_lines": [
                {"line": one.line, "last_line": one.last_line, "invoice": one.invoice, "text": one.text}
                for one in self.file.problems
            ],
            "complete": self.complete,
        }


def read(path: Path, tenant_column: str) -> InvoiceFile:
    """Read and check the whole file, with a progress bar.

    Raises:
        InvalidInput: the file as a whole cannot be read.
    """
    with console.progress() as progress:
        total = path.stat().st_size if path.is_file() else None
        task = progress.add_task("reading", total=total)
        return read_invoices(path, tenant_column, lambda done: progress.update(task, completed=done))


def check_pipeline() -> None:
    """See that somebody handles invoices here, before any is written.

    Raises:
        UnknownPipeline: modules are named in TASKBRIDGE_PIPELINES, and none declares `invoices`.
    """
    _ = runtime_of(app).pipelines[INVOICES]


def send(sending: Sending, meanwhile: Callable[[], None] = lambda: None) -> None:
    """Send what is in `sending.file`, counting in `sending`, with a progress bar.

    `meanwhile` is called between two invoices. A signal ends the import between two as well.

    Raises:
        Unavailable: Postgres or Redis cannot be used now.
    """
    with console.progress(of=True, time_left=True) as progress:
        task = progress.add_task("sending", total=len(sending.file.invoices))
        for invoice in sending.file.invoices:
            with uninterrupted():
                _send_one(sending, invoice)
            progress.update(task, completed=sending.done)
            meanwhile()


def _send_one(sending: Sending, invoice: Invoice) -> None:
    if not record_invoice(invoice.tenant, invoice.number, invoice.document):
        sending.unchanged += 1
        return
    sending.written += 1
    notify_event.delay(invoice.tenant)
    sending.notified += 1


def list_problems(path: Path, file: InvoiceFile) -> None:
    """List the first problems on stderr, by line number."""
    for problem in file.problems[: console.SHOWN_PROBLEMS]:
        invoice = f" invoice {problem.invoice}:" if problem.invoice else ""
        console.tell(f"{path}:{problem.line}:{invoice} {problem.text}")
    rest = len(file.problems) - console.SHOWN_PROBLEMS
    if rest > 0:
        console.tell(f"... and {rest} more (--json lists all)")
