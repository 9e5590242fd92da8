"""Index of the papers that jaxrl covers or sets out to cover.

`index.yaml` lists the papers; `jaxrl.papers.index` reads it and finds what implements each of them.
"""
