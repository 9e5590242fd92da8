"""Finite environments as tables of outcomes: every transition and reward tensor is at hand.

`observation` says what is seen of a state: `one_hot` (float32 [S]), `index` (an int32), or
`features` in the environments that have them.
"""
