"""The project's settings. The servers are those of PGHOST and the like, and of CELERY_BROKER_URL."""

from __future__ import annotations

import os

SECRET_KEY = os.environ.get("SECRET_KEY", "for development")
DATABASES = {"default": {"ENGINE": "django.db.backends.postgresql", "NAME": os.environ.get("PGDATABASE", "shop")}}
INSTALLED_APPS = [
    "orders",
    "taskbridge.django",
]
ROOT_URLCONF = "shop.urls"
ALLOWED_HOSTS = ["localhost", "127.0.0.1", "testserver"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
CELERY_BROKER_URL = os.environ.get("CELERY_BROKER_URL", "redis://localhost:6379/0")
WAREHOUSE_URL = os.environ.get("WAREHOUSE_URL", "http://localhost:8080")
