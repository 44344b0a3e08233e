"""Celery's settings for `celery -A taskbridge`, over the package's defaults. Values only.

The package works without this file. The broker comes from TASKBRIDGE_BROKER_URL, else from TASKBRIDGE_REDIS_URL.
"""

# A worker takes this many runs at a time; more tenants than that take turns.
worker_concurrency = 2

# Flower and `celery events` show what workers send; the cost is one message of a few hundred bytes per run.
worker_send_task_events = True

# A worker that lost its broker keeps trying.
broker_connection_retry_on_startup = True
broker_connection_max_retries = None
