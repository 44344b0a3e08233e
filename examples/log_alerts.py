"""Alerts from a log: a service's first message at once, further ones at most every five minutes.

After a service's last alert, a warning waits for up to fifteen minutes and an error for up to five. The first that is
due takes along everything that waits. Lines with other levels match no criterion and are stored as unmatched.

Run it from the root of the checkout, with delays divided by a hundred (3 s and 9 s):

    TASKBRIDGE_PIPELINES=examples.log_alerts LOG_ALERTS_SCALE=0.01 taskbridge up

and watch it from a second shell, with the same pipeline and scale:

    export TASKBRIDGE_PIPELINES=examples.log_alerts LOG_ALERTS_SCALE=0.01
    taskbridge record log-alerts examples/log_alerts.jsonl
    taskbridge status
    taskbridge quarantine list --unmatched --pipeline log-alerts
    grep alert: .taskbridge/worker-1.log

Record the file again, and each service waits for its delay: `taskbridge inspect` shows when it is due and why. With
`--id-field id`, recording the same messages again has no effect.
"""

from __future__ import annotations

import logging
import math
import os
from collections import Counter

from taskbridge import Batch, Criterion, DelaySinceLastRun, pipeline
from taskbridge.errors import ConfigurationError
from taskbridge.handlers.journal import journal

log = logging.getLogger(__name__)


def _scale() -> float:
    text = os.environ.get("LOG_ALERTS_SCALE", "1")
    try:
        scale = float(text)
    except ValueError:
        scale = math.nan
    if not 0 < scale < math.inf:
        raise ConfigurationError(f"LOG_ALERTS_SCALE is {text!r}: give a positive number, such as 0.01")
    return scale


SCALE = _scale()

POLICY = DelaySinceLastRun(
    (
        Criterion("$.level", "ERROR", "$.service", 300 * SCALE),
        Criterion("$.level", "WARNING", "$.service", 900 * SCALE),
    )
)


@pipeline("log-alerts", policy=POLICY)
def alert(batch: Batch) -> None:
    """Log a line for a service, and record what was delivered."""
    levels = Counter(record.document["level"] for record in batch)
    log.info("alert: %s has %d errors and %d warnings", batch.tenant, levels["ERROR"], levels["WARNING"])
    journal(batch)
