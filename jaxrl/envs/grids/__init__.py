"""Grid environments, and the kit that they stand on.

    cells     what is in a cell: one uint8 code for kind, color and door state
    moves     the agent: turn and go forward (MiniGrid), or by compass; pick up, drop, open
    view      what it sees: its own part of the grid, with occlusion, or the whole
    levels    a level from a key or from its number; choosing cells and numbers
    paths     distances by relaxation, with headings and without; what experts follow
    pictures  frames

An environment in the manner of MiniGrid is a function from a key to a `moves.State`, given to
`minigrid.minigrid`, which adds rules, reward, view, time limit, render and expert. An environment
with
rules of its own (pushing, growing, crafting, monsters) keeps a state of its own around a grid of
codes, moves with `moves.ahead`, `moves.cell` and `moves.put`, looks with `view.whole` or
`view.ahead_of`, draws its levels with `levels` (`uniform` is fast there, and `Params.level` names
them, so that prioritized replay or environment design can ask for one again), checks that they can
be solved with `paths`, and is drawn by `pictures.frame`. `cells` has one free kind; an environment
that needs more of them uses the low four bits in its own way and decodes them itself: nothing but
`cells` reads them, and the top bit says for all that a cell cannot be seen through. A level that
something else has designed is a `moves.State`: start from it instead of from `reset` (not in
`empty`, whose room is fixed and no part of its state).
"""
