"""Parts that goal-conditioned algorithms share."""
