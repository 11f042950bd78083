"""Coordination of the ranks of a job: listing, shares, steps and liveness."""
