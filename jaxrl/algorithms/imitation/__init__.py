"""Algorithms that imitate an expert: from its steps, its advice, or its corrections."""
