"""Each change of an order is a record. `manage.py taskbridge adopt ... --print-sql` has printed the statements."""

from pathlib import Path

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("orders", "0001_initial")]
    operations = [migrations.RunSQL((Path(__file__).parent / "adopt_orders.sql").read_text())]
