"""Benchmarks. Each measures its baseline in the same run, on servers of its own."""
