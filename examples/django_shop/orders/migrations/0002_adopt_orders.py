"""Each change of an order is a record. `manage.py taskbridge adopt ... --print-sql` has printed the statements."""

from pathlib import Path

from django.db import migrations

HERE = Path(__file__).parent


class Migration(migrations.Migration):
    dependencies = [("orders", "0001_initial")]
    operations = [migrations.RunSQL((HERE / "adopt_orders.sql").read_text(), (HERE / "unadopt_orders.sql").read_text())]
