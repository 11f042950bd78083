"""Example code that runs: drawn data sets, and small training loops."""
