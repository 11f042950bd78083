"""Ray Data over shards and sample indexes (extra ``[ray]``).

.. code-block:: python

    ds = ray.data.read_datasource(ShardDatasource("ais://pets/train-"))
    ds = ds.map(resized)
    ds.write_datasink(ShardDatasink("ais://small/train-%06d.tar", index=True))
"""

from torchdata_ais.integrations.ray.data import IndexDatasource, ShardDatasink, ShardDatasource

__all__ = ["IndexDatasource", "ShardDatasink", "ShardDatasource"]
