"""A module of pipelines that raises when it is imported."""

raise ZeroDivisionError("a mistake in the user's module")
