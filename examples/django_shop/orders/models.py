"""The shop's tables, without any trace of TaskBridge."""

from __future__ import annotations

from django.db import models


class Order(models.Model):
    """A customer's order. Its version changes with each update."""

    customer = models.TextField(db_index=True)
    item = models.TextField()
    amount = models.IntegerField()
    version = models.IntegerField(default=1)


class Shipment(models.Model):
    """What was sent to the warehouse about an order, and how often."""

    customer = models.TextField()
    order = models.BigIntegerField()
    amount = models.IntegerField()
    times_sent = models.IntegerField(default=0)

    class Meta:
        """One row per order of a customer."""

        constraints = (models.UniqueConstraint(fields=["customer", "order"], name="one_shipment"),)
