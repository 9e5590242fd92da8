"""Where batches come from."""

from jaxrl.sources.episodes import episodes
from jaxrl.sources.rollouts import rollouts

__all__ = ["episodes", "rollouts"]
