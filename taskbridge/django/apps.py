"""Django's word for this room."""

from __future__ import annotations

from django.apps import AppConfig
from django.db.models.signals import pre_migrate

__all__ = ["TaskBridge"]


class TaskBridge(AppConfig):
    """TaskBridge."""

    name = "taskbridge.django"
    label = "taskbridge"
    verbose_name = "TaskBridge"

    def ready(self) -> None:
        """Let TaskBridge know Django's settings, and let Django's ORM write in the transactions of batches."""
        from taskbridge import settings  # noqa: PLC0415 - Django loads this module early
        from taskbridge.django import borrowing, checks, configuration, migrating  # noqa: PLC0415
        from taskbridge.process.runtime import reread  # noqa: PLC0415
        from taskbridge.running.around import AROUND  # noqa: PLC0415

        if configuration.variables not in settings.GIVEN:
            settings.GIVEN.append(configuration.variables)
            # The program `celery` configures the app, and so needs the names of queues, before it loads the project.
            reread()
            AROUND.append(borrowing.borrowing)
            checks.connect_checks()
            pre_migrate.connect(migrating.Migrating(), sender=self, weak=False)
