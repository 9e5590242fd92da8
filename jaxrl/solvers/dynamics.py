"""Learning dynamics in games, one step at a time: regret, mirror descent, optimism.

Payoffs are gains of a player (maximized); gradients are of losses (minimized).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl.core.precise import matmul
from jaxrl.core.types import Array
from jaxrl.losses.divergences.entropy_and_kl import sparsemax
from jaxrl.losses.reductions import _full_mask

__all__ = [
    "aog",
    "cgo",
    "complex_momentum",
    "counterfactual_regret",
    "dilated_entropy_response",
    "fictitious_play",
    "ftrl",
    "mirror_descent",
    "optimistic_gradient",
    "optimistic_hedge",
    "regret_matching",
    "regret_matching_plus",
    "replicator",
]


def regret_matching(regret: Array, mask: Array | None = None) -> Array:
    """Regret matching: play each action in proportion to its positive regret.

    policy(a) = max(regret_a, 0) / sum_b max(regret_b, 0); uniform if no regret is positive

    Args:
      regret: [..., A], summed over iterations.
      mask: [..., A], true for legal actions; None: all.
    Returns: [..., A], probabilities; 0 for illegal actions.
    Gradients: none are stopped; 0 where the strategy is uniform.
    Source: Hart and Mas-Colell, 2000, "A simple adaptive procedure leading to correlated
      equilibrium"; Zinkevich et al., 2007, "Regret minimization in games with incomplete
      information", eq. 8.
    Example: `solvers.regret_matching(regret, mask)`
    """
    legal = _full_mask(regret, mask)
    positive = jnp.where(legal, jnp.maximum(regret, 0), 0)
    total = positive.sum(-1, keepdims=True)
    uniform = legal / jnp.maximum(legal.sum(-1, keepdims=True), 1).astype(regret.dtype)
    return jnp.where(total > 0, positive / jnp.where(total > 0, total, 1), uniform)


def regret_matching_plus(regret: Array, new_regret: Array) -> Array:
    """Update summed regrets and clip them at 0 (RM+), for `regret_matching`.

    max(regret + new_regret, 0)

    Args: regret, new_regret: [..., A], the sum so far (initially 0) and this iteration's.
    Returns: [..., A].
    Gradients: none are stopped.
    Source: Tammelin, 2014, "Solving large imperfect information games using CFR+".
    Example: `solvers.regret_matching_plus(regret, new_regret)`
    """
    return jnp.maximum(regret + new_regret, 0)


def counterfactual_regret(q_values: Array, policy: Array, opponent_reach: Array) -> Array:
    """Counterfactual regret of each action at an information set, as if one had tried to reach it.

    opponent_reach (q(a) - sum_b policy(b) q(b))

    Args:
      q_values: [..., A], expected payoffs of the actions, given that the set is reached.
      policy: [..., A], probabilities.
      opponent_reach: [...], probability that the others and chance lead there; 1 in a matrix game.
    Returns: [..., A], to sum over iterations for `regret_matching`.
    Gradients: none are stopped.
    Source: Zinkevich et al., 2007, "Regret minimization in games with incomplete information",
      eq. 7.
    Example: `solvers.counterfactual_regret(q_values, policy, opponent_reach)`
    """
    value = (policy * q_values).sum(-1, keepdims=True)
    return opponent_reach[..., None] * (q_values - value)


def mirror_descent(
    logits: Array, q_values: Array, step_size: Array | float, temperature: Array | float = 0.0
) -> Array:
    """Entropic mirror descent step in closed form: the best policy near an old one, or Hedge.

    argmax_p <p, Q> + temperature H(p) - KL(p || old) / step_size
      = softmax((log old + step_size Q) / (1 + step_size temperature))

    Without temperature it is the natural policy gradient step of a tabular softmax policy, and
    exponential weights (Hedge): old exp(step_size Q). With a reference as the old policy it is the
    best trade-off between values and divergence from it, with step_size 1 / beta. With temperature,
    iterated, it is entropy-regularized policy mirror ascent.

    Args:
      logits: [..., A], the old policy's, unnormalized; -inf where an action cannot be taken.
      q_values: [..., A], finite: payoffs, values, win rates against an opponent.
      step_size: eta, positive, broadcasts to [..., A].
      temperature: weight of the entropy, at least 0.
    Returns: [..., A], log-probabilities of the new policy.
    Gradients: none are stopped.
    Source: Agarwal et al., 2021, "On the theory of policy gradient methods", section 5; Freund and
      Schapire, 1997, "A decision-theoretic generalization of on-line learning and an application to
      boosting" (Hedge); Rafailov et al., 2023, "Direct preference optimization", eq. 4;
      Yardim et al., 2023, "Policy mirror ascent for efficient and independent learning in mean
      field games" (the idea); the closed form is derived here from the objective's stationary
      point.
    Example: `solvers.mirror_descent(logits, q_values, step_size=0.5)`
    """
    sum_of_both = jax.nn.log_softmax(logits) + step_size * q_values
    return jax.nn.log_softmax(sum_of_both / (1 + step_size * temperature))


def optimistic_hedge(
    logits: Array, payoff: Array, old_payoff: Array, step_size: Array | float
) -> Array:
    """Optimistic Hedge: multiplicative weights that predict the next payoff by the last one.

    policy_next proportional to policy exp(step_size (2 payoff - old_payoff))

    Args:
      logits: [..., A], unnormalized; -inf for illegal actions.
      payoff, old_payoff: [..., A], of this iteration and of the previous one (0 in the first).
      step_size: positive, broadcasts to [..., A].
    Returns: [..., A], log-probabilities.
    Gradients: none are stopped.
    Source: Syrgkanis et al., 2015, "Fast convergence of regularized learning in games";
      Daskalakis and Panageas, 2019, "Last-iterate convergence: zero-sum games and constrained
      min-max optimization".
    Example: `solvers.optimistic_hedge(logits, payoff, old_payoff, step_size=0.1)`
    """
    return mirror_descent(logits, 2 * payoff - old_payoff, step_size)


def ftrl(total_payoff: Array, step_size: Array | float, regularizer: str = "entropy") -> Array:
    """Follow the regularized leader (FTRL): the best strategy in hindsight, regularized.

    argmax_p <p, total_payoff> - R(p) / step_size, R(p) = sum p log p or |p|^2 / 2

    Args:
      total_payoff: [..., A], summed over iterations; -inf for illegal actions.
      step_size: positive, broadcasts to [..., A].
      regularizer: "entropy" (a softmax) or "euclidean" (a projection, which gives zeros).
    Returns: [..., A], probabilities.
    Gradients: none are stopped.
    Source: Shalev-Shwartz, 2012, "Online learning and online convex optimization", section 2.
    Example: `solvers.ftrl(total_payoff, step_size=0.1)`
    """
    project = {"entropy": jax.nn.softmax, "euclidean": sparsemax}[regularizer]
    return project(step_size * total_payoff)


def dilated_entropy_response(payoff: Array, weight: Array | float) -> tuple[Array, Array]:
    """Entropy-regularized best response at an information set of a game tree, with its value.

    policy = softmax(payoff / weight), value = weight log sum_a exp(payoff_a / weight)

    Args:
      payoff: [..., A], of the actions: summed payoffs plus the values of the sets they lead to.
      weight: weight of the set's entropy, positive, [..., 1] or a scalar; balanced by the tree's
        structure or adapted to visits, over the step size.
    Returns: the policy [..., A] and the value [...], max_p <p, payoff> + weight H(p). Applied from
      the leaves to the root this is follow-the-regularized-leader with dilated entropy.
    Gradients: none are stopped; the value's is the policy.
    Source: Hoda et al., 2010, "Smoothing techniques for computing Nash equilibria of sequential
      games"; Fiegel et al., 2023, "Adapting to game trees in zero-sum imperfect information
      games".
    Example: `solvers.dilated_entropy_response(payoff, weight=0.5)`
    """
    weight = jnp.asarray(weight, payoff.dtype)
    scaled = payoff / weight
    value = weight * jax.nn.logsumexp(scaled, -1, keepdims=True)
    return jax.nn.softmax(scaled), value[..., 0]


def replicator(policy: Array, payoff: Array) -> Array:
    """Replicator dynamics: rate of change of a population's shares, by payoffs above average.

    d policy(a) / dt = policy(a) (payoff_a - sum_b policy(b) payoff_b)

    Args: policy, payoff: [..., A], probabilities and expected payoffs.
    Returns: [..., A], with sum 0.
    Gradients: none are stopped.
    Source: Taylor and Jonker, 1978, "Evolutionary stable strategies and game dynamics".
    Example: `solvers.replicator(policy, payoff)`
    """
    return policy * (payoff - (policy * payoff).sum(-1, keepdims=True))


def fictitious_play(policy: Array, response: Array, step: Array | int) -> Array:
    """Update fictitious play's average strategy with one more best response.

    policy + (response - policy) / (step + 1)

    Args:
      policy: [..., A], average of `step` strategies.
      response: [..., A], probabilities: a best response to the others' averages.
      step: number of strategies in the average so far.
    Returns: [..., A].
    Gradients: none are stopped.
    Source: Brown, 1951, "Iterative solution of games by fictitious play".
    Example: `solvers.fictitious_play(policy, response, step=3)`
    """
    share = 1 / (jnp.asarray(step) + 1)
    return policy + (response - policy) * share.astype(policy.dtype)


def aog(
    policy: Array, anchor: Array, gradient: Array, step: Array | int, step_size: Array | float
) -> Array:
    """Accelerated optimistic gradient (AOG): a projected step with a fading pull to its start.

    project(policy - step_size gradient + (anchor - policy) / (step + 1))

    The method takes two such steps from the same policy: one to a new half step, with the gradient
    at the last half step, then one to the next policy, with the gradient at the new half step.

    Args:
      policy, anchor: [..., A], probabilities, now and at the start.
      gradient: [..., A], of the player's loss.
      step: t = 1, 2, ...
      step_size: positive.
    Returns: [..., A], probabilities.
    Gradients: none are stopped.
    Source: Cai and Zheng, 2023, "Doubly optimal no-regret learning in monotone games".
    Example: `solvers.aog(policy, anchor, gradient, step=1, step_size=0.1)`
    """
    share = (1 / (jnp.asarray(step) + 1)).astype(policy.dtype)
    return sparsemax(policy - step_size * gradient + share * (anchor - policy))


def optimistic_gradient(
    x: Array, gradient: Array, step_size: Array | float, extrapolation: Array | float
) -> tuple[Array, Array]:
    """Optimistic gradient step, with separate rates for the update and the extrapolation.

    x_next = x - step_size g, ahead = x_next - extrapolation g

    Args:
      x: [...], parameters or actions.
      gradient: g, [...], of the player's loss at the last extrapolated point.
      step_size, extrapolation: equal rates give the usual method; a larger extrapolation averages
        out noise.
    Returns: x_next and the extrapolated point, where to compute the next gradient, each [...].
    Gradients: none are stopped.
    Source: Popov, 1980, "A modification of the Arrow-Hurwicz method for search of saddle points";
      Hsieh et al., 2022, "No-regret learning in games with noisy feedback: faster rates and
      adaptivity via learning rate separation".
    Example: `solvers.optimistic_gradient(x, gradient, step_size=0.1, extrapolation=0.1)`
    """
    following = x - step_size * gradient
    return following, following - extrapolation * gradient


def cgo(
    x_gradient: Array, y_gradient: Array, cross_hessian: Array, interaction: Array | float
) -> tuple[Array, Array]:
    """Competitive gradient directions for min_x max_y f(x, y), which anticipate the other's move.

    dx = (I + a^2 D D')^-1 (g_x + a D g_y), dy = (I + a^2 D' D)^-1 (g_y - a D' g_x)

    Args:
      x_gradient, y_gradient: [..., X] and [..., Y], of f.
      cross_hessian: D, [..., X, Y], d^2 f / dx dy.
      interaction: a; 0 gives gradient descent ascent, the step size competitive gradient descent.
    Returns: dx [..., X] and dy [..., Y]: x descends along dx, y ascends along dy.
    Gradients: none are stopped.
    Source: Vyas et al., 2023, "Competitive gradient optimization"; Schaefer and Anandkumar,
      2019, "Competitive gradient descent".
    Example: `solvers.cgo(x_gradient, y_gradient, cross_hessian, interaction=1.0)`
    """
    dtype = x_gradient.dtype
    precise = jnp.promote_types(dtype, jnp.float32)  # the solver does not support half precision
    g_x, g_y, cross = (x.astype(precise) for x in (x_gradient, y_gradient, cross_hessian))
    a = jnp.asarray(interaction, precise)
    turned = jnp.swapaxes(cross, -1, -2)

    def solve(forth, back, right):
        matrix = jnp.eye(forth.shape[-2], dtype=precise) + a**2 * matmul(forth, back)
        return jnp.linalg.solve(matrix, right[..., None])[..., 0].astype(dtype)

    x_right = g_x + a * matmul(cross, g_y[..., None])[..., 0]
    y_right = g_y - a * matmul(turned, g_x[..., None])[..., 0]
    return solve(cross, turned, x_right), solve(turned, cross, y_right)


def complex_momentum(
    momentum: Array,
    gradient: Array,
    magnitude: Array | float,
    phase: Array | float,
    step_size: Array | float,
) -> tuple[Array, Array]:
    """Gradient step with complex momentum, which damps the rotational dynamics of games.

    m_next = magnitude exp(i phase) m - gradient, update = step_size Re(m_next)

    Args:
      momentum: [..., 2], real and imaginary part, initially 0.
      gradient: [...], of the player's loss.
      magnitude: in [0, 1).
      phase: in radians; 0 for ordinary (heavy-ball) momentum.
      step_size: positive.
    Returns: the next momentum [..., 2] and the update [...], to add to the parameters.
    Gradients: none are stopped.
    Source: Lorraine et al., 2022, "Complex momentum for optimization in games".
    Example: `solvers.complex_momentum(momentum, gradient, magnitude=0.8, phase=0.4, step_size=0.1)`
    """
    real, imaginary = momentum[..., 0], momentum[..., 1]
    cosine, sine = (jnp.asarray(magnitude * f(phase), momentum.dtype) for f in (jnp.cos, jnp.sin))
    turned = cosine * real - sine * imaginary - gradient
    return jnp.stack([turned, sine * real + cosine * imaginary], -1), step_size * turned
