"""Each kind of server that TaskBridge runs with, restarted or failed over while real workers are at work.

`python -m verification.servers` runs all rows, and `--only NAME` some; `make test-servers` does the same.
"""
