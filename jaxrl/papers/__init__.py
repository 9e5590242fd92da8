"""Index of the papers that jaxrl covers or sets out to cover.

`index.yaml` lists them; `jaxrl.papers.index` reads it and finds what implements each of them, from
the citations in docstrings.
"""
