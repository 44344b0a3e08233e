"""The command line `taskbridge`: one file per command, put together in `main`."""
