"""An economy of households that work and save, and a government that taxes and redistributes.

`households` differ in productivity and wealth. A year: the log of each productivity moves as an
AR(1) process; firms rent all wealth as capital K and hire labor L, the sum of productivity times
hours, and make K^share L^(1-share); wage and interest are the marginal products, the interest minus
`depreciation`. Taxes on income and on wealth have the form x - (1 - level) / (1 - bend) x^(1-bend),
x in units of the mean, so low incomes may be paid some; what they raise is paid to all alike. A
household consumes a share of its income after taxes and transfers, and saves the rest. Its utility
is log(consumption) - `effort` hours^3 / 3.

Two agents act at the same time. "government" sets the level and bend of both taxes, float32 [4]
from -1 (none) to 1 (`most` of each kind). "households", float32 [N, 2], choose the share of income
that each saves (-1 none, 1 all but a hundredth) and its hours (-1 a hundredth, 1 all). Under
`policy` "free" there are no taxes, and under "fixed" always those of the expert; the government's
actions are then of no account. Rewards: the government's is the households' mean utility (`goal`
"welfare"), or the growth of capital in percent, less 100 times `gini_weight` times the product of
both Gini coefficients ("output"); that of "households" is their mean utility, and privileged
`rewards`, float32 [N], is the utility of each. Time limit: `years`. Metrics: `welfare`, `output`
per household, `wealth_gini`, `income_gini`.

Observation: the government sees float32 [14]: log means of wealth, income and productivity of the
richer tenth and of the poorer half (by wealth), means of last year's actions, taxes, wage and
interest of last year; each household, of float32 [N, 16], sees the logs of its own productivity and
wealth before that. Who acts after the government, as followers of a leader do, has to be given its
action. Expert: a household saves the more, the higher its income ranks, and works half of its time;
the government's taxes are fixed.

Made for Mi et al., 2024, "Learning macroeconomic policies based on microfoundations: a Stackelberg
mean field game approach", arXiv:2403.12093, whose code has TaxAI's economy: the productions, wages,
taxes of this form, shocks and ranks of the population are those. Ours are constants in units of
one, capital that is all households' wealth, transfers in the place of government spending, and
utility without a bound. There are no superstars, consumption tax, debt or bankruptcy, and no
recorded data.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.spaces import Box
from jaxrl.core.types import Array, Environment, Key, TimeStep, struct
from jaxrl.envs import drawing, timesteps
from jaxrl.envs.options import at_least, one_of
from jaxrl.envs.wrappers.time_limit import time_limit

MOST = np.array([0.6, 0.6, 0.05, 0.05], np.float32)  # level and bend of income, then of wealth
FIXED = np.array([0.2, 0.18, 0.0, 0.0], np.float32)  # the expert's
LEAST = 1e-3  # income after taxes, and wealth, in units of wages


@struct
class Params:
    """Parameters of the economy."""

    share: float = 0.36  # of capital in output
    depreciation: float = 0.06  # of capital in a year
    persistence: float = 0.982  # of the log of productivity
    shock: float = 0.2  # its standard deviation in a year
    effort: float = 8.0  # weight of the disutility of work
    gini_weight: float = 0.0  # of inequality, for the goal "output"


@struct
class State:
    """State of `N` households at the start of a year."""

    productivity: Array  # float32 [N], log
    wealth: Array  # float32 [N]
    income: Array  # float32 [N], before taxes, of last year
    utility: Array  # float32 [N], of last year
    actions: Array  # float32 [2], mean shares saved and hours of last year
    taxes: Array  # float32 [4], of last year
    prices: Array  # float32 [2], wage and interest of last year
    output: Array  # float32, of last year, for each household
    gini: Array  # float32 [2], of wealth and of income after taxes, last year


def tax(x: Array, level: Array, bend: Array) -> Array:
    """Return the tax on each x, nonnegative, in units of their mean."""
    mean = jnp.maximum(x.mean(), 1e-6)
    kept = (1 - level) / (1 - bend) * (x / mean) ** (1 - bend)
    return x - mean * kept


def gini(x: Array) -> Array:
    """Return the Gini coefficient of nonnegative numbers [N], 0 where all are alike."""
    ordered = jnp.sort(x)
    count = len(x)
    weight = 2 * jnp.arange(1, count + 1) - count - 1
    return (weight * ordered).sum() / (count * jnp.maximum(ordered.sum(), 1e-9))


def prices(productivity: Array, wealth: Array, hours: Array, params: Params) -> tuple:
    """Return wage, interest and total output by all wealth and hours [N]."""
    capital, labor = wealth.sum(), (jnp.exp(productivity) * hours).sum()
    output = capital**params.share * labor ** (1 - params.share)
    wage = (1 - params.share) * output / labor
    return wage, params.share * output / capital - params.depreciation, output


@functools.cache
def tax_economy(
    households: int = 100, years: int = 64, policy: str = "open", goal: str = "welfare"
) -> Environment:
    """An economy of at least 10 `households`, for some `years`. `policy`: "open", "free" or
    "fixed". `goal`: "welfare" or "output"."""
    name = "tax_economy"
    at_least(name, "households", households, 10)
    at_least(name, "years", years, 1)
    one_of(name, "policy", policy, ("open", "free", "fixed"))
    one_of(name, "goal", goal, ("welfare", "output"))
    rich, poor = max(households // 10, 1), households // 2

    def shared(state: State) -> Array:
        """Return what all see."""
        order = jnp.argsort(state.wealth)
        groups = []
        for group in (order[households - rich :], order[:poor]):
            for x in (state.wealth, state.income, jnp.exp(state.productivity)):
                groups.append(jnp.log(jnp.maximum(x[group].mean(), LEAST)))
        return jnp.concatenate(
            [jnp.stack(groups), state.actions, state.taxes / MOST, state.prices]
        )  # fmt: skip

    def channels(state: State) -> tuple[dict, dict]:
        """Return the observations and the other channels."""
        whole = shared(state)
        own = jnp.stack([state.productivity, jnp.log(jnp.maximum(state.wealth, LEAST))], 1)
        each = jnp.concatenate([own, jnp.broadcast_to(whole, (households, len(whole)))], 1)
        metrics = {
            "welfare": state.utility.mean(),
            "output": state.output,
            "wealth_gini": state.gini[0],
            "income_gini": state.gini[1],
        }
        privileged = {"state": whole, "rewards": state.utility}
        seen = {"government": whole, "households": each}
        return seen, {"privileged": privileged, "metrics": metrics}

    def taxes_of(action: Array) -> Array:
        """Return the taxes that the government's action sets."""
        if policy != "open":
            return jnp.zeros(4) if policy == "free" else jnp.asarray(FIXED)
        return (jnp.clip(action, -1.0, 1.0) + 1) / 2 * MOST

    def reset(key: Key, params: Params) -> tuple[State, TimeStep]:
        one, two = jax.random.split(key)
        deviation = params.shock / jnp.sqrt(1 - params.persistence**2)
        productivity = deviation * jax.random.normal(one, (households,))
        wealth = 3 * jnp.exp(0.5 * productivity + 0.5 * jax.random.normal(two, (households,)))
        hours = jnp.full(households, 0.5)
        wage, interest, output = prices(productivity, wealth, hours, params)
        income = wage * jnp.exp(productivity) * hours + interest * wealth
        taxes = jnp.zeros(4) if policy == "open" else taxes_of(jnp.zeros(4))
        state = State(
            productivity,
            wealth,
            income,
            jnp.zeros(households),
            jnp.array([0.2, 0.5]),
            taxes,
            jnp.stack([wage, interest]),
            output / households,
            jnp.stack([gini(wealth), gini(jnp.maximum(income, 0.0))]),
        )
        seen, more = channels(state)
        return state, timesteps.first(seen, jnp.zeros(2), **more)

    def step(key: Key, state: State, action: dict, params: Params) -> tuple[State, TimeStep]:
        chosen = jnp.clip(action["households"], -1.0, 1.0)
        saved, hours = 0.99 * (chosen + 1).T / 2 + jnp.array([[0.0], [0.01]])
        noise = params.shock * jax.random.normal(key, (households,))
        productivity = params.persistence * state.productivity + noise
        wage, interest, output = prices(productivity, state.wealth, hours, params)
        income = wage * jnp.exp(productivity) * hours + interest * state.wealth
        taxable = jnp.maximum(income, LEAST)
        taxes = taxes_of(action["government"])
        level, bend, wealth_level, wealth_bend = taxes
        on_income = tax(taxable, level, bend)
        on_wealth = tax(state.wealth, wealth_level, wealth_bend)
        transfer = (on_income + on_wealth).mean()
        kept = jnp.maximum(income - on_income + transfer, LEAST)
        consumption = (1 - saved) * kept
        wealth = jnp.maximum(state.wealth - on_wealth + saved * kept, LEAST)
        utility = jnp.log(consumption) - params.effort * hours**3 / 3
        inequality = jnp.stack([gini(wealth), gini(kept)])
        after = State(
            productivity,
            wealth,
            income,
            utility,
            jnp.stack([saved.mean(), hours.mean()]),
            taxes,
            jnp.stack([wage, interest]),
            output / households,
            inequality,
        )
        growth = 100 * (wealth.sum() / state.wealth.sum() - 1)
        aim = utility.mean()
        if goal == "output":
            aim = growth - 100 * params.gini_weight * inequality.prod()
        seen, more = channels(after)
        return after, timesteps.following(seen, jnp.stack([aim, utility.mean()]), **more)

    def expert(state: State, params: Params) -> dict:
        del params
        rank = jnp.argsort(jnp.argsort(state.income)) / (households - 1)
        saved = jnp.stack([2 * (0.05 + 0.3 * rank) / 0.99 - 1, jnp.zeros(households)], 1)
        government = jnp.asarray(2 * FIXED / MOST - 1)
        return {"government": government, "households": saved.astype(jnp.float32)}

    wide = lambda *shape: Box(-np.inf, np.inf, shape)
    env = Environment(
        name=name,
        reset=jax.jit(reset, inline=True),
        step=jax.jit(step, inline=True),
        params=Params(),
        observation_space={"government": wide(14), "households": wide(households, 16)},
        action_space={
            "government": Box(-1.0, 1.0, (4,)),
            "households": Box(-1.0, 1.0, (households, 2)),
        },
        scores={"welfare": "welfare"},
        render=_draw,
        expert=jax.jit(expert, inline=True),
        agents=("government", "households"),
    )
    return time_limit(env, years)


def _draw(state: State, params: Params) -> np.ndarray:
    """Draw the households' wealth in order, and the four taxes as shares of the most."""
    canvas = drawing.Canvas(400, 240, scale=1.0, origin=(20, 220))
    wealth = np.sort(np.asarray(state.wealth))
    width = 280 / len(wealth)
    for i, high in enumerate(180 * wealth / max(wealth[-1], 1e-6)):
        left, right = width * i, width * (i + 1) - 1
        corners = [(left, 0.0), (right, 0.0), (right, float(high)), (left, float(high))]
        canvas.polygon(corners, drawing.BLUE)
    for i, rate in enumerate(np.asarray(state.taxes) / MOST):
        left = 300.0 + 18 * i
        for high, color in ((180.0, drawing.SHADE), (180 * float(rate), drawing.ORANGE)):
            corners = [(left, 0.0), (left + 14, 0.0), (left + 14, high), (left, high)]
            canvas.polygon(corners, color)
    return canvas.frame()
