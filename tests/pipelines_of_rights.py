"""Two pipelines that write nothing but the journal: invoices, and one with criteria."""

from __future__ import annotations

import tests.pipelines_with_criteria  # noqa: F401 - declares one
from taskbridge import pipeline
from taskbridge.handlers.journal import journal

pipeline("invoices")(journal)
