"""Exact denoisers of Gaussian data under EDM, whose predictions are linear."""

import jax.numpy as jnp
import numpy as np

from jaxrl import diffusion


def posterior_factor(cov, sigma):
    """The matrix that takes x - mean to E[clean | x] - mean, of data with covariance `cov`."""
    return cov @ np.linalg.inv(cov + sigma**2 * np.eye(len(cov)))


def denoiser(mean, cov, data_scale=1.0):
    """The network (noisy [..., D], level [...]) -> raw output [..., D] that denoises N(mean, cov)
    perfectly."""
    values, vectors = np.linalg.eigh(cov)
    values, vectors, mean = (jnp.asarray(x, jnp.float32) for x in (values, vectors, mean))

    def predict(noisy, level):
        sigma = jnp.exp(4 * level)
        skip, out, into, _ = diffusion.edm_preconditioning(sigma, data_scale)
        x = noisy / into[..., None]
        share = values / (values + sigma[..., None] ** 2)
        clean = mean + ((x - mean) @ vectors * share) @ vectors.T
        return (clean - skip[..., None] * x) / out[..., None]

    return predict


def denoising_steps(process, steps):
    """The levels [K + 1] between which the sampler steps, 0 at the end."""
    sigma = diffusion.karras_sigmas(
        jnp.linspace(0.0, 1.0, steps), process.largest, process.smallest, process.rho
    )
    return np.append(np.asarray(sigma, np.float64), 0.0)


def heun_map(cov, now, after):
    """The matrix that one second-order step applies to x - mean."""
    eye = np.eye(len(cov))
    slope = (eye - posterior_factor(cov, now)) / now
    euler = eye + (after - now) * slope
    if after == 0:
        return euler
    next_slope = (eye - posterior_factor(cov, after)) / after @ euler
    return eye + (after - now) * (slope + next_slope) / 2
