"""Celery's settings of the shop, as a Django project would have them: under a namespace, among others."""

from __future__ import annotations

import os

DEBUG = False
SHOP_BROKER_URL = os.environ["SHOP_BROKER"]
SHOP_RESULT_BACKEND = os.environ["SHOP_RESULTS"]
SHOP_TASK_SERIALIZER = "pickle"
SHOP_RESULT_SERIALIZER = "pickle"
SHOP_TASK_DEFAULT_QUEUE = "shop"
SHOP_TASK_ROUTES = {"shop.email": {"queue": "emails"}}
