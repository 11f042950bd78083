"""Reading of shards to samples, without torch."""
