"""Continual learning: penalties that preserve old tasks, and measures of lost plasticity.

Functions of parameters are elementwise: apply them leaf by leaf with jax.tree.map and sum over
the leaves.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl.core.checks import check_arguments
from jaxrl.core.types import Array
from jaxrl.losses.divergences.entropy_and_kl import categorical_kl
from jaxrl.losses.reductions import masked_mean

__all__ = [
    "distillation",
    "dormancy",
    "dormant_fraction",
    "ewc",
    "hypernetwork_drift",
    "l2_init",
    "magnitude_mask",
    "online_fisher",
    "policy_distillation",
    "synaptic_importance",
    "synaptic_intelligence",
    "synaptic_path",
]


@check_arguments
def l2_init(parameter: Array, initial: Array) -> Array:
    """Penalty that pulls parameters toward their initial values to keep the network plastic.

    (parameter - initial)^2

    Args: parameter, initial: [...]; elementwise, for jax.tree.map.
    Returns: [...]; the caller sums.
    Gradients: none flow into `initial`.
    Source: Kumar et al., 2023, "Maintaining plasticity in continual learning via regenerative
      regularization", section 3.
    Example: `losses.l2_init(parameter, initial).sum()`
    """
    return jnp.square(parameter - jax.lax.stop_gradient(initial))


@check_arguments
def ewc(parameter: Array, anchor: Array, fisher: Array) -> Array:
    """Elastic weight consolidation (EWC): a penalty on moving parameters that old tasks need.

    fisher (parameter - anchor)^2 / 2

    Args:
      parameter: [...]; elementwise, for jax.tree.map.
      anchor: [...], the parameters after the old task.
      fisher: [...], curvature of the old task's log-likelihood, by `online_fisher`.
    Returns: [...]; the caller sums and multiplies by lambda.
    Gradients: none flow into `anchor` or `fisher`.
    Source: Kirkpatrick et al., 2017, "Overcoming catastrophic forgetting in neural
      networks", eq. 3.
    Example: `losses.ewc(parameter, anchor, fisher).sum()`
    """
    return 0.5 * jax.lax.stop_gradient(fisher) * l2_init(parameter, anchor)


@check_arguments
def online_fisher(fisher: Array, gradient: Array, decay: Array | float = 1.0) -> Array:
    """Update the running diagonal of the Fisher information over tasks, for EWC.

    decay fisher + mean_n gradient_n^2

    Args:
      fisher: [...], of earlier tasks, 0 at first; for jax.tree.map.
      gradient: [..., N], gradients of the log-likelihood of each of N examples; outputs sampled
        from the model give the Fisher information, those of the data the "empirical" one.
      decay: gamma, at most 1: how fast old tasks may be forgotten. 1 keeps the sum.
    Returns: [...].
    Gradients: none: this is an estimate.
    Source: Schwarz et al., 2018, "Progress and compress: a scalable framework for continual
      learning", section 3 (online EWC).
    Example: `losses.online_fisher(fisher, gradient, decay=0.95)`
    """
    return jax.lax.stop_gradient(decay * fisher + jnp.square(gradient).mean(-1))


@check_arguments
def synaptic_path(path: Array, gradient: Array, displacement: Array) -> Array:
    """Synaptic intelligence (SI): running sum of each parameter's contribution to the loss's fall.

    path - gradient displacement

    Args:
      path: [...], the sum so far, 0 at a task's start; elementwise, for jax.tree.map.
      gradient: [...], of the task's loss, before the step.
      displacement: [...], the step: new minus old parameter.
    Returns: [...]; its total approximates the decrease of the loss.
    Gradients: none: this is an estimate.
    Source: Zenke et al., 2017, "Continual learning through synaptic intelligence", eq. 3.
    Example: `losses.synaptic_path(path, gradient, displacement)`
    """
    return jax.lax.stop_gradient(path - gradient * displacement)


@check_arguments
def synaptic_importance(
    importance: Array, path: Array, displacement: Array, damping: Array | float = 0.1
) -> Array:
    """Update synaptic intelligence's importance of each parameter at the end of a task.

    importance + path / (displacement^2 + damping)

    Args:
      importance: [...], of earlier tasks, 0 at first; elementwise, for jax.tree.map.
      path: [...], `synaptic_path` of the whole task.
      displacement: [...], how far the parameter moved over the whole task.
      damping: xi, positive.
    Returns: [...]; negative where a parameter's steps raised the loss.
    Gradients: none: this is an estimate.
    Source: Zenke et al., 2017, "Continual learning through synaptic intelligence", eq. 5.
    Example: `losses.synaptic_importance(importance, path, displacement)`
    """
    return jax.lax.stop_gradient(importance + path / (jnp.square(displacement) + damping))


@check_arguments
def synaptic_intelligence(parameter: Array, anchor: Array, importance: Array) -> Array:
    """Penalty on moving parameters whose steps lowered the losses of old tasks.

    importance (anchor - parameter)^2

    Args:
      parameter: [...]; elementwise, for jax.tree.map.
      anchor: [...], the parameters after the last task.
      importance: [...], `synaptic_importance`.
    Returns: [...]; the caller sums and multiplies by c.
    Gradients: none flow into `anchor` or `importance`.
    Source: Zenke et al., 2017, "Continual learning through synaptic intelligence", eq. 4.
    Example: `losses.synaptic_intelligence(parameter, anchor, importance).sum()`
    """
    return 2 * ewc(parameter, anchor, importance)


@check_arguments
def distillation(logits: Array, teacher_logits: Array, temperature: Array | float = 2.0) -> Array:
    """Loss that keeps a network's soft outputs near a teacher's, e.g. its own from an old task.

    temperature^2 KL(softmax(teacher_logits / temperature) || softmax(logits / temperature))

    Args:
      logits, teacher_logits: [..., A]; -inf where impossible.
      temperature: positive, broadcasts to [...]; the gradient's size hardly depends on it.
    Returns: [...].
    Gradients: none flow into `teacher_logits`.
    Source: Hinton et al., 2015, "Distilling the knowledge in a neural network", section 2; Li and
      Hoiem, 2016, "Learning without forgetting", eq. 2 (temperature 2, without the square).
    Example: `losses.distillation(logits, teacher_logits, temperature=2.0).mean()`
    """
    teacher_logits = jax.lax.stop_gradient(teacher_logits)
    scale = jnp.expand_dims(temperature, -1)
    return jnp.square(temperature) * categorical_kl(teacher_logits / scale, logits / scale)


@check_arguments
def policy_distillation(
    logits: Array, teacher_values: Array, temperature: Array | float = 0.01
) -> Array:
    """Loss that teaches a policy the preferences of a teacher's action values.

    KL(softmax(teacher_values / temperature) || softmax(logits))

    Args:
      logits: [..., A], of the student.
      teacher_values: [..., A], Q-values or logits of the teacher.
      temperature: positive, broadcasts to [...]; small ones sharpen Q-values, which are close.
    Returns: [...].
    Gradients: none flow into `teacher_values`.
    Source: Rusu et al., 2016, "Policy distillation", section 3.
    Example: `losses.policy_distillation(logits, teacher_values, temperature=0.01).mean()`
    """
    teacher = jax.lax.stop_gradient(teacher_values) / jnp.expand_dims(temperature, -1)
    return categorical_kl(teacher, logits)


@check_arguments
def hypernetwork_drift(weights: Array, stored_weights: Array) -> Array:
    """Penalty on changing the weights that a hypernetwork generates for an old task.

    sum_d (weights_d - stored_d)^2

    Args:
      weights: [..., D], generated for an old task's embedding now.
      stored_weights: [..., D], generated for it when the new task began.
    Returns: [...], one value per old task; the caller takes the mean over old tasks.
    Gradients: none flow into `stored_weights`.
    Source: von Oswald et al., 2020, "Continual learning with hypernetworks", eq. 2; Huang et al.,
      2021, "Continual model-based reinforcement learning with hypernetworks".
    Example: `losses.hypernetwork_drift(weights, stored_weights).mean()`
    """
    return l2_init(weights, stored_weights).sum(-1)


@check_arguments
def dormancy(activation: Array, mask: Array | None = None) -> Array:
    """Activity of each unit relative to its layer's mean; units near 0 are dormant.

    score_i = mean over examples |h_i| / mean_k mean over examples |h_k|

    Args:
      activation: [..., E, N], of E examples and N units.
      mask: broadcasts to [..., E], true where an example counts; None: everywhere.
    Returns: [..., N]; 0 in a silent layer.
    Gradients: none are stopped; this is a diagnostic, not a loss.
    Source: Sokar et al., 2023, "The dormant neuron phenomenon in deep reinforcement learning",
      definition 3.1.
    Example: `losses.dormancy(activation)`
    """
    if mask is not None:
        mask = jnp.broadcast_to(mask, activation.shape[:-1])[..., None]
    size = masked_mean(jnp.abs(activation), mask, axis=-2)
    mean = size.mean(-1, keepdims=True)
    return size / jnp.where(mean > 0, mean, 1)


@check_arguments
def dormant_fraction(
    activation: Array, threshold: Array | float = 0.025, mask: Array | None = None
) -> Array:
    """Fraction of a layer's units that are dormant, a sign that a network stops learning.

    mean_i 1(dormancy_i <= threshold)

    Args:
      activation: [..., E, N], of E examples and N units.
      threshold: tau, broadcasts to [...].
      mask: broadcasts to [..., E], true where an example counts; None: everywhere.
    Returns: [...].
    Gradients: none: this is a diagnostic.
    Source: Sokar et al., 2023, "The dormant neuron phenomenon in deep reinforcement learning",
      definition 3.1.
    Example: `losses.dormant_fraction(activation, threshold=0.025)`
    """
    dormant = dormancy(activation, mask) <= jnp.expand_dims(threshold, -1)
    return dormant.astype(activation.dtype).mean(-1)


@check_arguments
def magnitude_mask(weights: Array, free: Array, keep: float) -> Array:
    """PackNet's mask: a task keeps its largest free weights and prunes the rest for later tasks.

    1 for the round(keep n) largest |weights| among the n free ones, else 0

    Args:
      weights: [..., P], the flattened weights of a layer.
      free: [..., P], bool, true where no earlier task owns the weight.
      keep: the fraction to keep, from 0 to 1.
    Returns: [..., P], 1 or 0 in the weights' precision; among equals the first are kept.
    Gradients: none: this is a mask.
    Source: Mallya and Lazebnik, 2018, "PackNet: adding multiple tasks to a single network by
      iterative pruning", section 3.
    Example: `losses.magnitude_mask(weights, free, keep=0.5)`
    """
    size = jnp.where(free, jnp.abs(weights), -1)
    rank = jnp.argsort(jnp.argsort(-size, axis=-1), axis=-1)
    kept = rank < jnp.round(keep * free.sum(-1, keepdims=True))
    return (kept & free).astype(weights.dtype)
