"""Games on small screens of cells: MinAtar, and Catch.

`minimal_actions` of MinAtar's games offers only the actions that do something in the game.
"""
