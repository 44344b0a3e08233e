"""Alerts from a log: a service's first error at once, what follows at most every five minutes.

A warning may wait for fifteen minutes since the service's last alert, an error for five; whichever comes due first
takes all that waits along. Lines of other levels match no criterion and stay unmatched.

Run it from the root of the checkout, at a hundredth of the times (3 s and 9 s):

    TASKBRIDGE_PIPELINES=examples.log_alerts LOG_ALERTS_SCALE=0.01 taskbridge up

and watch it from a second shell, which needs the pipeline and the same scale as well:

    export TASKBRIDGE_PIPELINES=examples.log_alerts LOG_ALERTS_SCALE=0.01
    taskbridge record log-alerts examples/log_alerts.jsonl
    taskbridge status
    taskbridge quarantine list --unmatched --pipeline log-alerts
    grep alert: .taskbridge/worker-1.log

Record the file again, and each service waits for its delay: `taskbridge status` shows when it is due and why. With
`--id-field id` the messages are known, and nothing happens.
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
    """Log one line for a service, and write down what was delivered."""
    levels = Counter(record.document["level"] for record in batch)
    log.info("alert: %s has %d errors and %d warnings", batch.tenant, levels["ERROR"], levels["WARNING"])
    journal(batch)
