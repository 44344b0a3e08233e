"""The project's Celery app."""

from __future__ import annotations

import os

from celery import Celery

import taskbridge

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")

app = Celery("shop")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
bridge = taskbridge.install(app)
