"""The table has another name, by which an earlier migration cannot find it."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import migrations


class Migration(migrations.Migration):
    dependencies: ClassVar[list[Any]] = [("shop", "second_name")]
    operations: ClassVar[list[Any]] = [migrations.RenameModel("Line", "Item")]
