"""Texts as environments: one step is one token."""
