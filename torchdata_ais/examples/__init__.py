"""Example code that runs: a data set drawn on the spot, and a small training loop over it."""
