"""What the shop keeps."""

from __future__ import annotations

from typing import ClassVar

from django.db import models


class Customer(models.Model):
    """Who orders."""

    name: ClassVar[object] = models.TextField(unique=True)


class Order(models.Model):
    """What was ordered, and what became of it."""

    number: ClassVar[object] = models.TextField(unique=True)
    customer: ClassVar[object] = models.ForeignKey(Customer, null=True, on_delete=models.CASCADE)
    details: ClassVar[object] = models.JSONField(default=dict)
    at: ClassVar[object] = models.DateTimeField(null=True)
