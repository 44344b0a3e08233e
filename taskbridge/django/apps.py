"""The Django app."""

from __future__ import annotations

from django.apps import AppConfig
from django.db.models.signals import post_migrate, pre_migrate

__all__ = ["TaskBridge"]


class TaskBridge(AppConfig):
    """TaskBridge."""

    name = "taskbridge.django"
    label = "taskbridge"
    verbose_name = "TaskBridge"

    def ready(self) -> None:
        """Read Django's settings, and make the ORM write in the transactions of batches."""
        from taskbridge import settings  # noqa: PLC0415 - Django loads this module early
        from taskbridge.common.texts import TYPED  # noqa: PLC0415

        # `checks` registers its checks.
        from taskbridge.django import checkout, checks, configuration, migrating, migrations, test_databases  # noqa: F401, PLC0415
        from taskbridge.django.typed import as_typed_here  # noqa: PLC0415
        from taskbridge.process.connections import CHECKED_FIRST  # noqa: PLC0415
        from taskbridge.process.runtime import ALSO_CHECKED, reset_runtimes  # noqa: PLC0415
        from taskbridge.worker.middleware import MIDDLEWARE  # noqa: PLC0415

        if configuration.variables not in settings.GIVEN:
            # The program `celery` has already configured the app, including its queues, before it loads the project.
            reset_runtimes()
            settings.GIVEN.append(configuration.variables)
            settings.OVERRIDES.append(test_databases.variables_of_a_test)
            test_databases.follow()
            TYPED.append(as_typed_here)
            MIDDLEWARE.append(checkout.checkout)
            ALSO_CHECKED.append(configuration.check_one_database)
            CHECKED_FIRST.append(test_databases.check_no_project_in_a_test)
            pre_migrate.connect(migrating.bring_up_to_date, sender=self, weak=False)
            post_migrate.connect(migrations.adopt_again, sender=self)
