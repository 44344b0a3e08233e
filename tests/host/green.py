"""An app whose settings name a pool of green threads."""

from __future__ import annotations

from celery import Celery

import taskbridge

app = Celery("green", broker="redis://127.0.0.1:1/0", set_as_current=False)
app.conf.worker_pool = "gevent"
bridge = taskbridge.install(app)
