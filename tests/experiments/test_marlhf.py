"""The rewards that the claim of MARLHF learns, which certify the equilibrium of their game."""

import jax
import jax.numpy as jnp
import numpy as np

from experiments.claims.preferences import marlhf


def test_learned_rewards_bound_the_gap_of_the_equilibrium():
    """The bound is 0 with the learned rewards, and not with opposite ones."""
    with jax.enable_x64(True):
        pair = marlhf.draw(jax.random.key(0))
        game, policies = pair.games[0], pair.equilibria[0]
        data = marlhf.unilateral_data(pair, 0)
        np.testing.assert_allclose(data.sum(), 1)
        learn = jax.jit(lambda x: marlhf.learn_reward(data, marlhf.preferences(x)))
        learned = jnp.stack([learn(x) for x in game.reward])
        for own, exact in zip(learned, game.reward, strict=True):
            error = (marlhf.returns(own) - marlhf.returns(exact))[np.asarray(data) > 0]
            np.testing.assert_allclose(error, error[0], atol=1e-8)
        seen = jnp.zeros(learned.shape[1:])
        seen = seen.at[marlhf.STEP, marlhf.STATE, marlhf.ONE, marlhf.TWO].add(data[:, None]) > 0
        assert not seen.all()

        def bound_by(reward):
            lowest, highest = (jnp.where(seen, reward, x) for x in (-marlhf.BOUND, marlhf.BOUND))
            return marlhf.bound_gap(game, lowest, highest, policies)

        np.testing.assert_allclose(bound_by(learned), 0, atol=1e-8)
        assert bound_by(-learned) > 1
