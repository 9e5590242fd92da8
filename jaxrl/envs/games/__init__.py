"""Games: two players take turns, and what one wins the other loses. `role` says who is to move; the
observation is that player's and holds nothing that the other keeps hidden; the reward is a vector
with an entry for each player, as algorithms for games expect; an illegal move forfeits the game.
The returns given are the first player's. `against` makes a task for one agent."""
