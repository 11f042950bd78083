"""Reading of shards to samples, without torch.

`load_tar`, writers, lint and index builders share it.
"""
