"""Populations of deterministic policies: evolution strategies, genetic search, quality-diversity.

policies       a policy network as a vector, and thousands of them acting in one call
scoring        their returns and descriptors
descriptors    what an episode is described by
ranking        fitness as ranks
strategies     ask and tell: OpenAI-ES, CSA-ES, sep-CMA-ES, CMA-ES (`cma`), xNES (`xnes`)
evolution_strategy, genetic, map_elites, ppga: the algorithms
archive        one elite for each cell; novelty: how far from what was seen
"""
