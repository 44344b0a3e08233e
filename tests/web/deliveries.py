"""A pipeline that delivers over HTTP."""

from __future__ import annotations

import os

from taskbridge import pipeline
from taskbridge.web import deliver
from tests.web.secrets import SECRET

send_invoices = pipeline("invoices")(deliver(os.environ["TEST_ENDPOINT"], SECRET, allow_private=True))
