"""TaskBridge on a Celery app: its tasks, its queues, its worker's threads."""
