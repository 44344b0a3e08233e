"""A table, adopted."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import migrations, models

from taskbridge.django.migrations import AdoptTable


class Migration(migrations.Migration):
    operations: ClassVar[list[Any]] = [
        migrations.CreateModel(
            "Line",
            [
                ("id", models.BigAutoField(primary_key=True)),
                ("customer", models.TextField()),
                ("total", models.IntegerField()),
            ],
        ),
        AdoptTable("lines", model="Line", tenant="customer", key="id"),
        AdoptTable("lines", model="Line", tenant="customer", key="id", columns=["total"]),
    ]
