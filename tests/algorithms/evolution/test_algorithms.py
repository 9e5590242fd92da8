"""Evolutionary algorithms: structure, genomes, vectors and the shared evaluation."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.evolution import evolution_strategy, genetic, map_elites, ppga
from jaxrl.algorithms.evolution.shared import scoring
from jaxrl.algorithms.evolution.shared.descriptors import descriptor
from jaxrl.algorithms.evolution.shared.policies import policies
from jaxrl.algorithms.policy_gradient.ppo import ppo
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.settings import replace
from jaxrl.core.spaces import Box
from jaxrl.core.train import start, train
from jaxrl.envs.wrappers import time_limit
from jaxrl.kit.wrapping import params_of
from tests.contracts.structure import check_structure

CARTPOLE = time_limit(envs.make("cartpole"), 12)
WHERE = {"descriptor": ("observation.0",), "low": (-1.0,), "high": (1.0,), "cells": (8,)}
GENETIC = genetic.Config(
    population=6, parents=2, hidden=(), max_generations=4, elite_candidates=2, elite_episodes=2,
    selection="novelty", descriptor=("observation.0",), memory=8,
)  # fmt: skip
jitted = jax.jit(train, static_argnums=(0, 2))


def tiny_ppga(**changes):
    tiny = {"population": 3, "num_envs": 2, "num_steps": 4, "minibatches": 1, "epochs": 1}
    tiny |= {"gradient_updates": 1, "walk_updates": 1, "hidden": (4,)} | WHERE | changes
    return replace(ppga.Config(), tiny)


ALGORITHMS = {
    "evolution strategy": lambda: evolution_strategy.evolution_strategy(CARTPOLE),
    "genetic": lambda: genetic.genetic(CARTPOLE, GENETIC),
    "map_elites": lambda: map_elites.map_elites(CARTPOLE, map_elites.Config(**WHERE)),
    "ppga": lambda: ppga.ppga(CARTPOLE, tiny_ppga()),
}


def as_pictures(env, side=64):
    """Show the grid of `env` as a picture that a default encoder reads."""

    def show(result):
        state, timestep = result
        cells = timestep.observation.astype(jnp.float32)
        picture = jax.image.resize(cells, (side, side, cells.shape[-1]), "nearest")
        return state, dataclasses.replace(timestep, observation=picture)

    return dataclasses.replace(
        env,
        observation_space=Box(0.0, 1.0, (side, side, env.observation_space.shape[-1])),
        reset=lambda key, params: show(env.reset(key, params)),
        step=lambda *given: show(env.step(*given)),
    )


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_structure(name):
    algorithm = ALGORITHMS[name]()
    check_structure(algorithm)
    assert algorithm is ALGORITHMS[name]()

    def act():
        _, timestep = jax.vmap(CARTPOLE.reset, in_axes=(0, None))(
            jax.random.split(random.key(0), 5), CARTPOLE.params
        )
        policy = algorithm.policy(start(algorithm, random.key(0)).state)
        return policy.act(policy.state, timestep, policy.memory(5), random.key(0), True)[0]

    assert jax.eval_shape(act).shape == (5,)


def test_a_vector_is_the_policy_of_the_network_it_came_from():
    env, config = envs.make("pendulum"), replace(ppo.Config(), {"hidden": (4,)})
    agent, space = ppo.agent(env, config), policies(env, (4,), "tanh")
    state = agent.init(random.key(0), agent.hyper)
    _, timestep = jax.vmap(env.reset, in_axes=(0, None))(
        jax.random.split(random.key(1), 6), env.params
    )
    expected, _, _ = agent.act(state, timestep, (), random.key(2), True)
    network = lambda state: params_of(state)["actor_critic"]
    vector = space.vector(network(state))
    policy = space.policy(jnp.stack([2 * vector, vector]))
    both, _, _ = policy.act(policy.state, timestep, (), random.key(2), True)
    np.testing.assert_allclose(
        both[3:], expected[3:], rtol=1e-6
    )  # the second half belongs to the second policy
    assert (both[:3] != expected[:3]).all()
    other = network(agent.init(random.key(3), agent.hyper))
    np.testing.assert_array_equal(space.vector(space.insert(other, vector)), vector)
    critic = lambda params: params["params"]["critic"]["Dense_0"]["kernel"]
    np.testing.assert_array_equal(critic(space.insert(other, vector)), critic(other))
    assert space.size == 3 * 4 + 4 + 4 + 1  # without the deviation, without the critic


def test_an_elite_with_bad_luck_plays_again_and_stays(monkeypatch):
    """One play says that it is the worst; several say that it is still the best."""
    score = scoring.score

    def unlucky(env, space, vectors, *rest):
        found, worth = score(env, space, vectors, *rest), vectors[:, 0]
        once = len(vectors) == GENETIC.population
        fitness = jnp.where(once & (worth == 9), -9.0, worth)
        return dataclasses.replace(found, fitness=fitness)

    monkeypatch.setattr(scoring, "score", unlucky)
    config = dataclasses.replace(GENETIC, selection="fitness", mutation=0.0)
    algorithm = genetic.genetic(CARTPOLE, config)
    run = start(algorithm, random.key(0))
    vectors = run.state.own.vectors.at[:, 0].set(jnp.array([9.0, 1, 2, 3, 4, 5]))
    own = dataclasses.replace(run.state.own, vectors=vectors, best_fitness=jnp.float32(9))
    run = dataclasses.replace(run, state=dataclasses.replace(run.state, own=own))
    after = train(algorithm, run, 1)[0].state.own
    np.testing.assert_array_equal(after.best, vectors[0])
    np.testing.assert_array_equal(after.vectors[0], vectors[0])
    assert after.best_fitness == 9
    assert set(np.asarray(after.vectors[1:, 0]).tolist()) <= {9.0, 5.0}  # the two parents


def test_policies_see_pictures():
    """The vector has the convolutions, so that a policy acts by what it sees."""
    env = as_pictures(envs.make("catch"))
    space, agent = policies(env, (4,), "tanh"), ppo.agent(env, {"hidden": (4,)})
    state = jax.eval_shape(agent.init, random.key(0), agent.hyper)
    network = params_of(state)["actor_critic"]["params"]
    parts = [network[name] for name in ("convolution", "actor", "head")]
    assert space.size == sum(x.size for x in jax.tree.leaves(parts))
    keys = jax.random.split(random.key(1), 8)
    _, timestep = jax.vmap(env.reset, (0, None))(keys, env.params)
    policy = space.policy(10 * space.init(random.key(2))[None])
    actions, _, _ = policy.act(policy.state, timestep, (), random.key(3), True)
    assert len(np.unique(actions)) > 1


def test_ppga_takes_the_torso_of_ppo():
    env = time_limit(envs.make("catch"), 4)
    where = {"descriptor": ("success",), "low": (0.0,), "high": (1.0,), "cells": (2,)}
    options = {"channels": (2,), "initializer": "orthogonal"}
    a = ppga.ppga(env, tiny_ppga(**where, **options))
    run = start(a, random.key(0))
    network = params_of(jax.tree.map(lambda x: x[0], run.state.directions).agent)["actor_critic"]
    own = policies(env, (4,), "tanh", **options).insert(network, run.state.theta)["params"]
    kernel = own["actor"]["Dense_0"]["kernel"]  # its columns are orthogonal
    product = kernel.T @ kernel
    np.testing.assert_allclose(product / product[0, 0], np.eye(4), atol=1e-5)
    after, _ = jitted(a, run, 1)
    assert np.isfinite(after.state.theta).all() and (after.state.theta != run.state.theta).any()


def test_genomes_rebuild_their_weights_to_the_bit():
    algorithm = ALGORITHMS["genetic"]()
    run, _ = jitted(algorithm, start(algorithm, random.key(1)), 3)
    state = run.state
    own = state.own
    lengths = np.asarray(own.genomes.length)
    assert lengths.max() == 4 and (np.asarray(own.genomes.seeds) > 0).sum() == lengths.sum()
    for i in range(len(lengths)):
        genome = jax.tree.map(lambda x, i=i: x[i], own.genomes)
        rebuilt = genetic.reconstruct(CARTPOLE, GENETIC, state, genome)
        np.testing.assert_array_equal(rebuilt, own.vectors[i])
    rebuilt = genetic.reconstruct(CARTPOLE, GENETIC, state, own.best_genome)
    np.testing.assert_array_equal(rebuilt, own.best)
    long = dataclasses.replace(own.best_genome, length=jnp.int32(5))
    with pytest.raises(UserError, match="max_generations"):
        genetic.reconstruct(CARTPOLE, GENETIC, state, long)


def test_each_policy_gets_the_score_of_its_own_episodes():
    """Policies that always push left fall early and those that follow the pole do not, in any order
    and in chunks."""
    space = policies(CARTPOLE, (), "tanh")
    # Whether weights [4, 2] come after the biases or before does not matter here.
    candidates = jnp.eye(space.size) - jnp.eye(space.size)[::-1]
    play = jax.jit(scoring.score, static_argnums=(0, 1, 4, 5, 6))
    describe = descriptor(CARTPOLE, ("observation.0",))
    scores = play(CARTPOLE, space, candidates, random.key(0), 3, describe, 0)
    reversed_ = play(CARTPOLE, space, candidates[::-1], random.key(0), 3, describe, 0)
    chunked = play(CARTPOLE, space, candidates, random.key(0), 3, describe, space.size // 2)
    assert scores.fitness.max() - scores.fitness.min() > 1
    np.testing.assert_allclose(scores.fitness, reversed_.fitness[::-1], atol=1.01)
    np.testing.assert_allclose(scores.fitness, chunked.fitness, atol=1.01)
    np.testing.assert_allclose(scores.fitness, scores.episodes.lengths.mean(1))
    np.testing.assert_allclose(
        scores.descriptors[:, 0], scores.episodes.last.observation[..., 0].mean(1), rtol=1e-6
    )


def test_the_reward_of_a_measure_is_its_change():
    """Let the undiscounted return be the descriptor at the end minus that at the start."""
    env = ppga.weight_rewards(CARTPOLE, ("observation.0", "observation.2"))
    params = dataclasses.replace(env.params, reward_weights=jnp.float32([0.0, 1.0, 0.0]))
    state, first = env.reset(random.key(0), params)
    total, last = 0.0, first
    for i in range(4):
        state, last = env.step(random.key(i), state, jnp.int32(1), params)
        total += last.reward
    np.testing.assert_allclose(total, last.observation[0] - first.observation[0], atol=1e-6)
    assert last.true_reward == 1.0


def test_ppga_restarts_from_an_elite_if_no_branch_improves():
    """Coefficients are drawn around 0 at first, and again after a restart."""
    a = ALGORITHMS["ppga"]()
    at_first = start(a, random.key(0), {"floor": 1e9})  # no branch exceeds it
    after, row = jitted(a, at_first, 1)
    assert row["restarts"].value() == 1
    for state in (at_first.state, after.state):
        coefficients = state.coefficients
        np.testing.assert_array_equal(coefficients.mean, np.zeros(2))
        assert coefficients.sigma == 1 and (coefficients.shape == np.eye(2)).all()
    elites = after.state.archive.genotypes[after.state.archive.has_elite]
    assert (elites == after.state.theta).all(1).any()


def test_invalid_settings_are_rejected():
    for build, config in (
        (genetic.genetic, dataclasses.replace(GENETIC, parents=7)),
        (genetic.genetic, dataclasses.replace(GENETIC, descriptor=())),
        (genetic.genetic, dataclasses.replace(GENETIC, descriptor=("speed",))),
        (genetic.genetic, dataclasses.replace(GENETIC, descriptor=("observation.4",))),
        (genetic.genetic, dataclasses.replace(GENETIC, selection="fame")),
        (map_elites.map_elites, map_elites.Config()),
        (map_elites.map_elites, map_elites.Config(**WHERE | {"low": (2.0,)})),
        (ppga.ppga, tiny_ppga(**{"normalization.observation": True})),
        (evolution_strategy.evolution_strategy, evolution_strategy.Config(population=0)),
    ):
        with pytest.raises(UserError):
            build(CARTPOLE, config)
    with pytest.raises(UserError, match="chunk"):
        space = policies(CARTPOLE, (), "tanh")
        scoring.score(CARTPOLE, space, jnp.zeros((4, space.size)), random.key(0), chunk=3)
