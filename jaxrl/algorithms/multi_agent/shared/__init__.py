"""Parts that multi-agent algorithms share."""
