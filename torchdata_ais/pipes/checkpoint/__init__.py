"""Checkpoints of pipes that stream shards."""
