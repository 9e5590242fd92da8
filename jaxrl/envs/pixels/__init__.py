"""Games on small screens of cells: MinAtar and Catch.

In MinAtar's games, `minimal_actions` offers only the actions that do something in the game.
"""
