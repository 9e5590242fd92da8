"""Populations of deterministic policies: evolution strategies, genetic search, quality-diversity.

evolution_strategy, genetic, map_elites, ppga: the algorithms

In `shared`:
policies       policy networks as vectors; thousands of them act in one call
scoring        returns and descriptors of policies
descriptors    numbers that describe an episode
ranking        fitness as ranks
strategies     ask and tell: OpenAI-ES, CSA-ES, sep-CMA-ES, CMA-ES (`cma`), xNES (`xnes`)
archive        one elite per cell of the descriptor space
novelty        distance of behaviors from those seen before
"""
