"""Helpers of the tests: clusters, shards, chains, and how to wait for something."""
