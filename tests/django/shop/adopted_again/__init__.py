"""Migrations of the shop in which a table is adopted a second time; a test names them in MIGRATION_MODULES."""
