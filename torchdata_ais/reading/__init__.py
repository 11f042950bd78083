"""From a shard's bytes to whole samples, without torch: what `load_tar`, writers, lint and index builders share."""
