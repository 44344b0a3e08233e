"""The dashboard in a real browser; run by `make test-browser`."""
