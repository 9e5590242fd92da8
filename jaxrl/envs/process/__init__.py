"""Control of processes whose actions act late, or that something else moves too."""
