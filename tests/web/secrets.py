"""What signs in tests that start processes."""

from typing import Final

SECRET: Final = "whsec_a2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2s="
