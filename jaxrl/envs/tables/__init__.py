"""Finite environments as tables of outcomes: every transition and reward tensor is available.

`observation` says how a state is observed: `one_hot` (float32 [S]), `index` (an int32), or
`features` in the environments that have them.
"""
