"""Steps in preference games, in which a policy is judged by how often it beats another.

preference[..., i, j] is the probability that i is preferred to j; preference + transpose = 1.
"""

from __future__ import annotations

import jax

from jaxrl.core import precise
from jaxrl.core.types import Array
from jaxrl.losses.divergences.entropy_and_kl import categorical_kl
from jaxrl.solvers.dynamics import mirror_descent

__all__ = [
    "egpo",
    "geometric_mixture",
    "nash_md",
    "nash_mirror_prox",
    "preference_gap",
    "preference_mirror_step",
]


def geometric_mixture(logits: Array, reference_logits: Array, weight: Array | float) -> Array:
    """Geometric mixture of two policies: the weighted mean of log-probabilities, normalized.

    p(y) proportional to pi(y)^(1 - weight) pi_ref(y)^weight

    Args:
      logits, reference_logits: [..., A], unnormalized, finite.
      weight: in [0, 1], weight of the reference; broadcasts to [..., A].
    Returns: [..., A], log-probabilities.
    Gradients: none are stopped.
    Source: Munos et al., 2024, "Nash learning from human feedback" (Nash-MD's regularized policy).
    Example: `solvers.geometric_mixture(logits, reference_logits, weight=0.125)`
    """
    policy, reference = jax.nn.log_softmax(logits), jax.nn.log_softmax(reference_logits)
    return jax.nn.log_softmax((1 - weight) * policy + weight * reference)


def _win_rates(preference: Array, logits: Array) -> Array:
    """Return the probability of each answer to beat a policy's samples."""
    return precise.einsum("...ij,...j->...i", preference, jax.nn.softmax(logits))


def preference_gap(
    preference: Array, logits: Array, reference_logits: Array, beta: Array | float
) -> Array:
    """Duality gap of a policy in a preference game with a reference, 0 at the Nash equilibrium.

    2 (max_p J(p, pi) - 1/2), J(p, q) = P(p > q) - beta KL(p || pi_ref) + beta KL(q || pi_ref)

    Args:
      preference: [..., A, A].
      logits, reference_logits: [..., A], unnormalized, finite.
      beta: strength of the pull toward the reference, positive; for none use `duality_gap`.
    Returns: [...], the duality gap of the policy against itself; 0 only at the equilibrium.
    Gradients: none are stopped.
    Source: Munos et al., 2024, "Nash learning from human feedback"; Zhou et al., 2025,
      "Extragradient preference optimization (EGPO)".
    Example: `solvers.preference_gap(preference, logits, reference_logits, beta=0.1)`
    """
    values, reference = _win_rates(preference, logits), jax.nn.log_softmax(reference_logits)
    best = beta * jax.nn.logsumexp(reference + values / beta, -1)
    return 2 * (best + beta * categorical_kl(logits, reference_logits) - 0.5)


def preference_mirror_step(
    preference: Array,
    logits: Array,
    opponent_logits: Array,
    reference_logits: Array,
    eta: Array | float,
    beta: Array | float,
) -> Array:
    """Mirror descent on a preference game with a reference, against a given opponent.

    pi_next proportional to pi^(1 - eta beta) pi_ref^(eta beta) exp(eta P(. > opponent))

    Args:
      preference: [..., A, A].
      logits, opponent_logits, reference_logits: [..., A], unnormalized, finite.
      eta: step size, at most 1 / beta.
      beta: strength of the pull toward the reference.
    Returns: [..., A], log-probabilities. With the policy as its own opponent this is plain mirror
      descent in self-play.
    Gradients: none are stopped.
    Source: Zhou et al., 2025, "Extragradient preference optimization (EGPO)" (tabular softmax).
    Example: `solvers.preference_mirror_step(preference, logits, logits, reference_logits, eta=1.0,
      beta=0.1)`
    """
    mixture = geometric_mixture(logits, reference_logits, eta * beta)
    return mirror_descent(mixture, _win_rates(preference, opponent_logits), eta)


def nash_md(
    preference: Array,
    logits: Array,
    reference_logits: Array,
    eta: Array | float,
    beta: Array | float,
) -> Array:
    """Nash mirror descent (Nash-MD) step, against a mixture of the policy and the reference.

    pi_next proportional to m exp(eta P(. > m)), m = geometric_mixture(pi, pi_ref, eta beta)

    Args:
      preference: [..., A, A].
      logits, reference_logits: [..., A], unnormalized, finite.
      eta: step size, at most 1 / beta.
      beta: strength of the pull toward the reference (tau).
    Returns: [..., A], log-probabilities.
    Gradients: none are stopped.
    Source: Munos et al., 2024, "Nash learning from human feedback" (Nash-MD).
    Example: `solvers.nash_md(preference, logits, reference_logits, eta=0.5, beta=0.1)`
    """
    mixture = geometric_mixture(logits, reference_logits, eta * beta)
    return preference_mirror_step(preference, logits, mixture, reference_logits, eta, beta)


def egpo(
    preference: Array,
    logits: Array,
    reference_logits: Array,
    eta: Array | float,
    beta: Array | float,
) -> Array:
    """Extragradient preference optimization (EGPO): step against a look-ahead of the policy.

    half = step(pi, opponent=pi), pi_next = step(pi, opponent=half), step = preference_mirror_step

    Args:
      preference: [..., A, A].
      logits, reference_logits: [..., A], unnormalized, finite.
      eta: step size, at most 1 / beta.
      beta: strength of the pull toward the reference.
    Returns: [..., A], log-probabilities. The last iterate converges to the equilibrium.
    Gradients: none are stopped.
    Source: Zhou et al., 2025, "Extragradient preference optimization (EGPO): beyond last-iterate
      convergence for Nash learning from human feedback".
    Example: `solvers.egpo(preference, logits, reference_logits, eta=1.0, beta=0.1)`
    """
    half = preference_mirror_step(preference, logits, logits, reference_logits, eta, beta)
    return preference_mirror_step(preference, logits, half, reference_logits, eta, beta)


def nash_mirror_prox(
    preference: Array,
    logits: Array,
    reference_logits: Array,
    eta: Array | float,
    beta: Array | float,
) -> Array:
    """Mirror prox step on a preference game, both of whose stages solve a proximal problem exactly.

    half = prox(pi, opponent=pi), pi_next = prox(pi, opponent=half),
    prox(pi, q) = argmax_p eta (P(p > q) - beta KL(p || pi_ref)) - KL(p || pi)

    Args:
      preference: [..., A, A].
      logits, reference_logits: [..., A], unnormalized, finite.
      eta: step size, positive.
      beta: strength of the pull toward the reference.
    Returns: [..., A], log-probabilities. The last iterate converges to the equilibrium.
    Gradients: none are stopped.
    Source: Tiapkin et al., 2025, "Accelerating Nash learning from human feedback via mirror prox".
    Example: `solvers.nash_mirror_prox(preference, logits, reference_logits, eta=1.0, beta=0.1)`
    """
    # The proximal problem is solved by a mirror step of a smaller size.
    return egpo(preference, logits, reference_logits, eta / (1 + eta * beta), beta)
