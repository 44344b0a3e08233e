"""Producers: from a program that saves something to its record in Postgres and its event at the gate."""
