"""The embedded cluster's process: one proxy and its targets.

It uses only the standard library, xxhash and msgspec. Nothing here imports the rest of `torchdata_ais`, because the
process must start in a tenth of a second and must not load torch. `__main__.py` is started by its file path and loads
this folder as a separate package.
"""
