"""${message}"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = ${repr(branch_labels)}
depends_on = ${repr(depends_on)}


def upgrade() -> None:
    """Go up."""
    ${upgrades if upgrades else "raise NotImplementedError"}


def downgrade() -> None:
    """Go down."""
    ${downgrades if downgrades else "raise NotImplementedError"}
