"""Text environments: one step is one token."""
