"""Algorithms for games: self-play, leagues, populations."""
