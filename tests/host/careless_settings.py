"""Celery settings of an app that does not care for messages that fail."""

task_acks_late = False
task_acks_on_failure_or_timeout = True
task_reject_on_worker_lost = False
task_ignore_result = False
task_store_errors_even_if_ignored = True
result_backend = "cache+memory://"
broker_transport_options = {"visibility_timeout": 3, "unacked_restore_interval": 1, "unacked_restore_throttle": 1}
