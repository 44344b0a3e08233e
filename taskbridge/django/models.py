"""No models. Django announces migrations to apps that have this module."""
