"""Several discs in a plane, each an agent that acts at the same time as the others."""
