"""Suites: agents trained in environments that people know, as records, tables and learning
curves."""
