"""The shop's tables. TaskBridge does not occur here."""

from __future__ import annotations

from django.db import models


class Order(models.Model):
    """What a customer has ordered. Its version is another number after each change."""

    customer = models.TextField(db_index=True)
    item = models.TextField()
    amount = models.IntegerField()
    version = models.IntegerField(default=1)


class Shipment(models.Model):
    """What the warehouse has been told of an order, and how often."""

    customer = models.TextField()
    order = models.BigIntegerField()
    amount = models.IntegerField()
    tellings = models.IntegerField(default=0)

    class Meta:
        """One for each order of a customer."""

        constraints = (models.UniqueConstraint(fields=["customer", "order"], name="one_shipment"),)
