"""Games: self-play, leagues, populations."""
