"""Networks of token policies: a small one of their own, or a language model from a folder."""

from __future__ import annotations

from typing import Any

from jaxrl.algorithms.policy_gradient.shared.actor_critic import check_policy, policy_network
from jaxrl.core.errors import UserError
from jaxrl.core.spaces import Discrete
from jaxrl.core.types import Environment
from jaxrl.kit import group, static
from jaxrl.networks import decoder_files
from jaxrl.networks.actor_critic import ActorCritic, context_length
from jaxrl.networks.decoder import KERNELS, Adapters


@group
class LanguageModel:
    """Language model of Llama's or Qwen's layout as the policy."""

    model: str = ""
    """Folder with config.json and model.safetensors of a language model (Llama, Qwen2, Qwen3) that
    becomes the policy, instead of a new network; empty for none."""
    lora_rank: int = static(0, low=0)
    """Rank of the language model's adapters, which alone are trained (LoRA); 0 trains all of its
    weights."""
    lora_alpha: float = static(16.0, above=0)
    """Factor of the adapters' output, divided by their rank."""
    lora_kernels: tuple[str, ...] = static(("q_proj", "v_proj"), choices=KERNELS, least_length=1)
    """Kernels of each block that have adapters. Hu et al., 2021, section 7.1: q_proj and v_proj."""


def token_network(env: Environment, config: Any) -> ActorCritic | decoder_files.Pretrained:
    """Return the network of a token policy for `env`: the language model of the settings
    `config.decoder`, or else a new one of `config.torso` and `config.memory`.

    Raises `UserError` for a folder that holds no such model, and for texts beyond its context.
    """
    own = config.decoder
    if not own.model:
        return policy_network(env, config.torso, config.memory)
    adapters = Adapters(own.lora_rank, own.lora_alpha, own.lora_kernels)
    return decoder_files.read_model(own.model, context_length(env), adapters)


def check_network(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` if no network of these settings can act in `env`."""
    own = config.decoder
    if not own.model:
        check_policy(env, config.torso, config.memory, name)
        return
    size = decoder_files.read_architecture(own.model).vocabulary
    spaces = env.observation_space, env.action_space
    if any(space != Discrete(size) for space in spaces):
        text = " and ".join(dict.fromkeys(map(repr, spaces)))
        raise UserError(
            f"The model in '{own.model}' has a vocabulary of {size} tokens, and '{env.name}' is of "
            f"{text}; both must be the same (see envs.language.vocabulary.tokenizer)."
        )
