"""Each change of an order is a record."""

from django.db import migrations

from taskbridge.django.migrations import AdoptTable


class Migration(migrations.Migration):
    dependencies = [("orders", "0001_initial")]
    operations = [AdoptTable("orders", model="Order", tenant="customer", key="id")]
