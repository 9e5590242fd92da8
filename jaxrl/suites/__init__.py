"""Suites: algorithms trained in environments that people know, as records, tables and curves."""
