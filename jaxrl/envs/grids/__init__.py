"""Grid environments, and the kit that they are built on.

    cells     contents of a cell: one uint8 code for kind, color and door state
    moves     the agent: turn and go forward (MiniGrid), or by compass; pick up, drop, open
    view      observations: the part of the grid ahead, with occlusion, or the whole
    levels    a level from a key or from its number; choosing cells and numbers
    paths     distances by relaxation, with headings and without; what experts follow
    pictures  images of the grid

An environment in the style of MiniGrid is a function from a key to a `moves.State`, passed to
`minigrid.minigrid`, which adds rules, reward, view, time limit, render and expert. An environment
with rules of its own (pushing, growing, crafting, monsters) keeps its own state around a grid of
codes, moves with `moves.ahead`, `moves.cell` and `moves.put`, observes with `view.whole` or
`view.ahead_of`, draws its levels with `levels` (whose `uniform` is fast, and where `Params.level`
names a level, so that prioritized replay or environment design can ask for it again), checks with
`paths` that they can be solved, and is drawn by `pictures.frame`. `cells` has one free kind; an
environment that needs more uses the low four bits in its own way and decodes them itself: nothing
but `cells` reads them, and the top bit always means that a cell cannot be seen through. A level
designed by something else is a `moves.State`: start from it instead of from `reset` (except in
`empty`, whose room is fixed and not part of its state).
"""
