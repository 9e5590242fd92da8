"""Datasets of experience: checked, cached, and read from files."""
