"""ETL: a function of a sample, run by the cluster on whole shards.

::

    @shard_etl(decode="pil")
    def small(sample, args):
        sample["jpg"] = sample["jpg"].resize((args["size"], args["size"]))
        return sample

    ensure_etl(cluster, "small-images", small)      # a LocalCluster, an SDK client, or an address
    AISSourceLister("ais://pets", etl=ETLConfig("small-images", args={"size": 64})).load_tar()...    # while reading
    transform_bucket(cluster, "small-images", "ais://pets", "ais://pets-small")                      # once, for good

Differences between the embedded cluster and Kubernetes:

============================  =====================================  ================================================
                              `LocalCluster(etl=True)`               a real cluster (needs Kubernetes)
============================  =====================================  ================================================
Where the function runs       one child process on this machine      a pod next to each target
Python and packages           those of this environment              the image ``aistorage/runtime_python:3.x`` of the
                                                                     same minor version, and `dependencies`, which pip
                                                                     installs when the pod starts
Your own modules              by value, as on the real one           by value: code of files that are not installed
                                                                     packages travels with the function
Who may make and change them  who has the token of that start        who the cluster's access control lets
What it may do                all that you may: run no one else's    what the pod may
Files of this machine         there                                  not there
Limits                        size of the payload (120 kB)           the same, and memory and time of the pod
Time for one shard            `obj_timeout` without a byte           `obj_timeout` until the last byte
============================  =====================================  ================================================
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
