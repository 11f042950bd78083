"""The pipelines, each as its own documentation writes it: a function from a job to (batches, close).

A job says which shards to read (`endpoint`, `template`, `prefix`, `repeat`), how many `workers` to use, whether to
`decode` (JPEG to 224x224, uint8) and how large the shuffle buffer is. Batches are ``(images, labels)`` of 64.
"""

import io
import multiprocessing
from functools import partial

import numpy as np
import shards
import torch
from PIL import Image

BATCH = 64
SIZE = 224


def nothing():
    pass


def field(job):
    return "jpg" if job["record"] == "jpg" else "bin"


# -- decoding, for the peers


def pillow_resize(image):
    pixels = np.asarray(image.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BILINEAR))
    return torch.from_numpy(pixels.transpose(2, 0, 1).copy())


def pillow_decode(data):
    return pillow_resize(Image.open(io.BytesIO(data)))


def fast_decode(data):
    import simplejpeg

    planes = torch.from_numpy(simplejpeg.decode_jpeg(data)).permute(2, 0, 1)[None]
    return torch.nn.functional.interpolate(planes, size=(SIZE, SIZE), mode="bilinear", antialias=True)[0]


def fast_handler(name, data):
    return fast_decode(data) if name.endswith(".jpg") else None


def stacked(rows):
    first, labels = zip(*rows, strict=True)
    if isinstance(first[0], torch.Tensor):
        return torch.stack(first), torch.tensor([int(label) for label in labels])
    return list(first), list(labels)


def unstacked(rows):
    return tuple(map(list, zip(*rows, strict=True)))


# -- the limit of the machine: the same pictures in memory, nothing else


def _decode_all(data, count, ready, go):
    torch.set_num_threads(1)
    batch = torch.empty((BATCH, 3, SIZE, SIZE), dtype=torch.uint8)
    ready.release()
    go.wait()
    for index in range(count):
        batch[index % BATCH] = fast_decode(data[index % len(data)])


def limit(job):
    workers = job["workers"]
    data = shards.pictures()
    ready, go = multiprocessing.Semaphore(0), multiprocessing.Event()
    count = 2000
    running = [
        multiprocessing.Process(target=_decode_all, args=(data, count, ready, go)) for _ in range(workers)
    ]
    for process in running:
        process.start()
    for _ in running:
        ready.acquire()

    def batches():
        go.set()
        for process in running:
            process.join()
            yield (range(count),)

    return batches(), nothing


# -- webdataset


def _by_requests(url, *_):
    """An opener for webdataset as its users write it: no curl, no check of the length."""
    import requests

    response = requests.get(url, stream=True, timeout=60)
    response.raise_for_status()
    response.raw.auto_close = False  # the buffer asks once more after the end
    return io.BufferedReader(response.raw, 1 << 18)


def webdataset(job, handler=None, opener=None):
    import webdataset as wds

    if opener is not None:
        wds.gopen_schemes["http"] = opener
    url = f"{job['endpoint']}/v1/objects/{shards.BUCKET}/{job['template']}?provider=ais"
    urls = wds.shardlists.expand_urls(url) * job["repeat"]
    dataset = wds.WebDataset(urls, shardshuffle=False).shuffle(job["buffer"])
    if job["decode"]:
        dataset = dataset.decode(handler or "pil")
    dataset = dataset.to_tuple(field(job), "cls")
    if job["decode"]:
        if handler is None:
            dataset = dataset.map_tuple(pillow_resize, int)
        dataset = dataset.batched(BATCH, collation_fn=stacked)
    else:
        dataset = dataset.batched(BATCH, collation_fn=unstacked)
    return wds.WebLoader(dataset, batch_size=None, num_workers=job["workers"]), nothing


# -- torchdata's own pipes


def _read(member):
    return member[0], member[1].read()  # in its turn: a stream cannot go back


def _torchdata_row(sample, name, as_number):
    fields = {key.rpartition(".")[2]: value for key, value in sample.items() if key != "__key__"}
    return fields[name], int(fields["cls"]) if as_number else fields["cls"]


def _torchdata_image(row):
    return pillow_decode(row[0]), row[1]


def torchdata(job):
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
    from torch.utils.data.datapipes.iter import IterableWrapper

    import torchdata_ais.urls

    names = torchdata_ais.urls.expand_template(job["template"])
    urls = [f"{job['endpoint']}/v1/objects/{shards.BUCKET}/{name}?provider=ais" for name in names]
    pipe = IterableWrapper(urls * job["repeat"]).sharding_filter().read_from_http()
    pipe = pipe.load_from_tar().map(_read).webdataset()
    pipe = pipe.map(partial(_torchdata_row, name=field(job), as_number=job["decode"]))
    if job["decode"]:
        pipe = pipe.map(_torchdata_image)
    pipe = pipe.batch(BATCH).collate(stacked)
    service = MultiProcessingReadingService(num_workers=job["workers"]) if job["workers"] else None
    loader = DataLoader2(pipe, reading_service=service)
    return loader, loader.shutdown


# -- the SDK's


def _sdk_decoded(samples):
    return stacked([(pillow_decode(fields["jpg"]), int(fields["cls"])) for _, fields in samples])


def _sdk_bytes(samples, name):
    return unstacked([(fields[name], fields["cls"]) for _, fields in samples])


def shard_reader(job):
    from aistore.pytorch import AISShardReader
    from aistore.sdk import Client

    bucket = Client(job["endpoint"]).bucket(shards.BUCKET)
    dataset = AISShardReader(bucket, prefix_map={bucket: [job["prefix"]] * job["repeat"]})
    collate = _sdk_decoded if job["decode"] else partial(_sdk_bytes, name=field(job))
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=BATCH, num_workers=job["workers"], collate_fn=collate
    )
    return loader, nothing


# -- this package


def our_pipe(job, threads=0):
    from torchdata_ais import AISSourceLister

    sources = [f"ais://{shards.BUCKET}/{job['template']}"] * job["repeat"]
    pipe = AISSourceLister(sources, endpoint=job["endpoint"]).load_tar(
        open_shards=job["open_shards"], verify=job.get("verify")
    )
    pipe = pipe.group_samples()
    if job["buffer"]:
        pipe = pipe.shuffled(job["buffer"])
    if job["decode"]:
        pipe = pipe.decode("torchrgb8", size=SIZE, **({"threads": threads} if threads else {}))
    return pipe.to_tuple(field(job), "cls").batched(BATCH)


def ours_in_process(job):
    return our_pipe(job), nothing


def ours_threads(job):
    return our_pipe(job, threads=2), nothing


def ours_dataloader2(job, threads=0):
    from torchdata_ais.dataloader2 import DataLoader2, MultiProcessingReadingService

    service = MultiProcessingReadingService(num_workers=job["workers"])
    loader = DataLoader2(our_pipe(job, threads), reading_service=service)
    return loader, loader.shutdown


def ours_dataloader(job):
    loader = torch.utils.data.DataLoader(our_pipe(job), batch_size=None, num_workers=job["workers"])
    return loader, nothing


PIPELINES = {
    "limit": limit,
    "webdataset": webdataset,
    "webdataset + requests": partial(webdataset, opener=_by_requests),
    "webdataset + fast decoder": partial(webdataset, handler=fast_handler),
    "torchdata": torchdata,
    "AISShardReader": shard_reader,
    "ours": ours_in_process,
    "ours, threads": ours_threads,
    "ours, DataLoader2": ours_dataloader2,
    "ours, DataLoader2, threads": partial(ours_dataloader2, threads=2),
    "ours, DataLoader": ours_dataloader,
}
