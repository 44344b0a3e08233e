"""Celery settings of an app whose tasks are killed when the connection to the broker is lost."""

worker_cancel_long_running_tasks_on_connection_loss = True
