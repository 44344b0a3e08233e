"""Another column counts too, so the table is adopted once more."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import migrations

from taskbridge.django.migrations import AdoptTable


class Migration(migrations.Migration):
    dependencies: ClassVar[list[Any]] = [("shop", "third_model")]
    operations: ClassVar[list[Any]] = [
        AdoptTable("lines", model="Item", tenant="customer", key="id", columns=["amount"]),
        AdoptTable("lines", model="Item", tenant="customer", key="id"),
    ]
