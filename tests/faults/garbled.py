"""A pipeline whose handler garbles what its process answers to the worker's main process, as a lost byte would."""

from __future__ import annotations

import os
from typing import Any

from billiard.process import current_process

from taskbridge import Batch, pipeline
from taskbridge.integration import failed_worker

# A test need not wait for half a minute.
vars(failed_worker)["ENDS_WITHIN"] = 2.0


@pipeline("invoices")
def garble(batch: Batch) -> None:  # noqa: ARG001 - what it gets does not matter
    process: Any = current_process()
    # One answer that cannot be read, and the beginning of another that never ends.
    os.write(process._target.outq._writer.fileno(), b"\0\0\0\1\1" + b"\0\0\x10\0")
