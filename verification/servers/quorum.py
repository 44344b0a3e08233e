"""The Celery configuration of an app with quorum queues; `CELERY_CONFIG_MODULE` names it."""

task_default_queue_type = "quorum"
