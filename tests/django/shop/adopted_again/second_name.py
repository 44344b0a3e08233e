"""A column that counts has another name."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import migrations

from taskbridge.django.migrations import AdoptTable


class Migration(migrations.Migration):
    dependencies: ClassVar[list[Any]] = [("shop", "first_lines")]
    operations: ClassVar[list[Any]] = [
        migrations.RenameField("Line", "total", "amount"),
        AdoptTable("lines", model="Line", tenant="customer", key="id", columns=["amount"]),
    ]
