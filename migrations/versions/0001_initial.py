"""The schema of version 0.1, as the SQL beside this file makes it."""

from __future__ import annotations

from pathlib import Path

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

# What Python's check_tenant and check_key refuse, as the server's regular expressions have it.
CONTROL = r"[\u0001-\u001F\u007F-\u009F\u2028\u2029]"
SPACE = r"[\u0020\u00A0\u1680\u2000-\u200A\u202F\u205F\u3000]"


def upgrade() -> None:
    """Make everything in the schema that is looked in alone."""
    connection = op.get_bind()
    text = Path(__file__).with_suffix(".sql").read_text(encoding="utf-8")
    for place, value in (
        ("@schema", connection.exec_driver_sql("SELECT quote_ident(current_schema())").scalar_one()),
        ("@name", connection.exec_driver_sql("SELECT quote_literal(current_schema())").scalar_one()),
        ("@control", CONTROL),
        ("@space", SPACE),
    ):
        text = text.replace(place, value)
    connection.exec_driver_sql(text.replace("%", "%%"))


def downgrade() -> None:
    """There is no way back but to drop the schema: `taskbridge migrate --to base`."""
    raise NotImplementedError
