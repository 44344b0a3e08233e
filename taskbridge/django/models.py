"""There are no models, but Django only sends `pre_migrate` to apps that have this module."""
