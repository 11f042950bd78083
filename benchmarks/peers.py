"""The pipelines, each as its own documentation writes it: a function from a job to (batches, close).

A job says which shards to read (`endpoint`, `template`, `prefix`, `repeat`), how many `workers` to use, whether to
`decode` (JPEG to 224x224, uint8) and how large the shuffle buffer is. Batches are ``(images, labels)`` of 64.
"""

import io
import itertools
import multiprocessing
from functools import partial

import bare
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


# -- training's random crop, for the peers: torchvision's, of a PIL image or of a tensor


def torchvision_crop():
    from torchvision.transforms import v2

    return v2.Compose([v2.RandomResizedCrop(SIZE, antialias=True), v2.RandomHorizontalFlip(0.5)])


class CropOfPil:
    """As everyone writes it: torchvision's transforms of what PIL decodes."""

    def __init__(self):
        from torchvision.transforms import v2

        self.transform = v2.Compose([*torchvision_crop().transforms, v2.PILToTensor()])

    def __call__(self, image):
        return self.transform(image.convert("RGB"))


class CropOfTensor:
    """A handler that decodes all of the picture by simplejpeg, and torchvision's transforms of that tensor."""

    def __init__(self):
        self.transform = torchvision_crop()

    def __call__(self, name, data):
        import simplejpeg

        if not name.endswith(".jpg"):
            return None
        return self.transform(torch.from_numpy(simplejpeg.decode_jpeg(data)).permute(2, 0, 1))


def stacked(rows):
    first, labels = zip(*rows, strict=True)
    if isinstance(first[0], torch.Tensor):
        return torch.stack(first), torch.tensor([int(label) for label in labels])
    return list(first), list(labels)


def unstacked(rows):
    return tuple(map(list, zip(*rows, strict=True)))


# -- the limit of the machine: the same pictures in memory, nothing else


def _cropped(data):
    from torchdata_ais import Decoder

    decode = Decoder("torchrgb8", random_resized_crop=SIZE, flip=0.5)
    return lambda index: decode.decode_field("jpg", data[index % len(data)], index)


def _decode_all(data, crop, count, ready, go):
    torch.set_num_threads(1)
    batch = torch.empty((BATCH, 3, SIZE, SIZE), dtype=torch.uint8)
    decode = _cropped(data) if crop else lambda index: fast_decode(data[index % len(data)])
    decode(0)
    ready.release()
    go.wait()
    for index in range(count):
        batch[index % BATCH] = decode(index)


def limit(job):
    workers = job["workers"]
    shape = shards.PHOTO if job["template"].startswith(shards.PHOTO.name) else shards.JPEG
    data = shards.pictures(shape)
    ready, go = multiprocessing.Semaphore(0), multiprocessing.Event()
    count = 2000 if shape is shards.JPEG else 60
    running = [
        multiprocessing.Process(target=_decode_all, args=(data, job["crop"], count, ready, go))
        for _ in range(workers)
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

    if handler is not None and job["crop"]:
        handler = CropOfTensor()

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
            dataset = dataset.map_tuple(CropOfPil() if job["crop"] else pillow_resize, int)
        dataset = dataset.batched(BATCH, collation_fn=stacked)
    else:
        dataset = dataset.batched(BATCH, collation_fn=unstacked)
    return wds.WebLoader(dataset, batch_size=None, num_workers=job["workers"]), nothing


def webdataset_mixture(job):
    """Two data sets, 0.7 and 0.3, without end: the loader counts."""
    import webdataset as wds

    url = f"{job['endpoint']}/v1/objects/{shards.BUCKET}/{job['template']}?provider=ais"
    urls = wds.shardlists.expand_urls(url)
    halves = (urls[: len(urls) // 2], urls[len(urls) // 2 :])
    parts = [
        wds.WebDataset(half, shardshuffle=False, resampled=True)
        .decode("pil")
        .to_tuple("jpg", "cls")
        .map_tuple(pillow_resize, int)
        for half in halves
    ]
    mixed = wds.DataPipeline(wds.RandomMix(parts, [0.7, 0.3]), wds.batched(BATCH, collation_fn=stacked))
    loader = wds.WebLoader(mixed, batch_size=None, num_workers=job["workers"])
    return itertools.islice(loader, job["batches"]), nothing


# -- torchdata's own pipes


def _read(member):
    return member[0], member[1].read()  # in its turn: a stream cannot go back


def _torchdata_row(sample, name, as_number):
    fields = {key.rpartition(".")[2]: value for key, value in sample.items() if key != "__key__"}
    return fields[name], int(fields["cls"]) if as_number else fields["cls"]


def _torchdata_image(row):
    return pillow_decode(row[0]), row[1]


def _torchdata_crop(row, crop):
    return crop(Image.open(io.BytesIO(row[0]))), row[1]


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
        pipe = pipe.map(partial(_torchdata_crop, crop=CropOfPil()) if job["crop"] else _torchdata_image)
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


class MembersByName(torch.utils.data.Dataset):
    """Samples by number, as the SDK reads members out of shards: a request for each."""

    def __init__(self, job):
        from aistore.sdk import Client

        self.bucket = Client(job["endpoint"]).bucket(shards.BUCKET)
        self.names = sorted(entry.name for entry in self.bucket.list_all_objects(prefix=job["prefix"]))
        self.each = job["each"]

    def __len__(self):
        return len(self.names) * self.each

    def _read(self, number, field):
        from aistore.sdk.archive_config import ArchiveConfig

        config = ArchiveConfig(archpath=f"{number:08d}.{field}")
        return (
            self.bucket.object(self.names[number // self.each]).get_reader(archive_config=config).read_all()
        )

    def __getitem__(self, number):
        return fast_decode(self._read(number, "jpg")), int(self._read(number, "cls"))


def members_by_name(job):
    loader = torch.utils.data.DataLoader(
        MembersByName(job), batch_size=BATCH, shuffle=True, num_workers=job["workers"], collate_fn=stacked
    )
    return loader, nothing


# -- this package


def our_pipe(job, threads=0):
    from torchdata_ais import AISSourceLister, Safety

    sources = [f"ais://{shards.BUCKET}/{job['template']}"] * job["repeat"]
    pipe = AISSourceLister(sources, cluster=job["endpoint"]).load_tar(
        open_shards=job["open_shards"], safety=Safety(verify=job.get("verify"))
    )
    pipe = pipe.group_samples()
    if job["buffer"]:
        pipe = pipe.shuffled(job["buffer"])
    if job["decode"]:
        how = {"random_resized_crop": SIZE, "flip": 0.5} if job["crop"] else {"size": SIZE}
        pipe = pipe.decode("torchrgb8", **how, **({"threads": threads} if threads else {}))
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


def ours_ais_loader(job):
    from torchdata_ais import ais_loader

    loader = ais_loader(our_pipe(job), num_workers=job["workers"])
    return loader, loader.close


def _our_index(job, half=None):
    from torchdata_ais import SampleIndex
    from torchdata_ais.urls import expand_template

    names = list(expand_template(f"ais://{shards.BUCKET}/{job['template']}"))
    middle = len(names) // 2
    chosen = {None: names, 0: names[:middle], 1: names[middle:]}[half]
    place = shards.cache() / f"index-{job['prefix']}{'all' if half is None else half}"
    return SampleIndex.build(chosen, method="read", where=str(place), cluster=job["endpoint"])


def _row(sample):
    return sample["jpg"], sample["cls"]


def ours_by_number(job):
    """A map-style data set, under torch's loader and sampler."""
    from torchdata_ais import Decoder, SampleDataset

    dataset = SampleDataset(_our_index(job), Decoder("torchrgb8", size=SIZE), cluster=job["endpoint"])
    loader = torch.utils.data.DataLoader(
        dataset,
        batch_size=BATCH,
        shuffle=True,
        num_workers=job["workers"],
        collate_fn=lambda rows: stacked([_row(sample) for sample in rows]),
    )
    return loader, nothing


def _by_index(job, source, shuffle="samples", **how):
    from torchdata_ais import AISSampleReader, ais_loader

    reader = AISSampleReader(source, shuffle=shuffle, cluster=job["endpoint"], **how)
    pipe = reader.decode("torchrgb8", size=SIZE, only="jpg cls").to_tuple("jpg", "cls").batched(BATCH)
    loader = ais_loader(pipe, num_workers=job["workers"], seed=0)
    return loader, loader.close


def ours_by_index(job):
    return _by_index(job, _our_index(job))


def ours_runs(job):
    return _by_index(job, _our_index(job), shuffle="runs")


def ours_stream(job):
    """What the planned rows are compared with: the same loader and the same pipe over a stream of shards."""
    from torchdata_ais import AISSourceLister, ais_loader

    lister = AISSourceLister(f"ais://{shards.BUCKET}/{job['template']}", cluster=job["endpoint"])
    pipe = lister.load_tar().group_samples().decode("torchrgb8", size=SIZE, only="jpg cls")
    loader = ais_loader(pipe.to_tuple("jpg", "cls").batched(BATCH), num_workers=job["workers"], seed=0)
    return loader, loader.close


def ours_mixture(job):
    from torchdata_ais import Mixture

    mixture = Mixture({_our_index(job, 0): 0.7, _our_index(job, 1): 0.3}, stop="never")
    return _by_index(job, mixture, epoch_steps=job["batches"])


PIPELINES = {
    "webdataset, RandomMix": webdataset_mixture,
    "SDK, a member a request": members_by_name,
    "ours, SampleDataset": ours_by_number,
    "ours, by index": ours_by_index,
    "ours, runs": ours_runs,
    "ours, stream": ours_stream,
    "ours, Mixture": ours_mixture,
    "bare loop": bare.reading,
    "bare loop, decoded": bare.decoding,
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
    "ours, ais_loader": ours_ais_loader,
}
