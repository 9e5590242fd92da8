"""Suites: agents trained in worlds that people know, as records, tables and learning curves."""
