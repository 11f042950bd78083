"""The data of the benchmarks: shards made with a fixed seed, kept in a cache folder, served by a cluster.

The cache is ``$TORCHDATA_AIS_BENCH_DATA``, by default a folder in the system's temporary one. It is the root of an
embedded cluster, so that shards are made once. With ``AIS_ENDPOINT`` set, they are put on that cluster instead, into
``$TORCHDATA_AIS_BENCH_BUCKET`` (``torchdata-ais-bench``).
"""

import contextlib
import io
import json
import os
import pathlib
import tarfile
import tempfile
from dataclasses import dataclass

import numpy as np
from PIL import Image

from torchdata_ais.local import LocalCluster

BUCKET = os.environ.get("TORCHDATA_AIS_BENCH_BUCKET", "torchdata-ais-bench")
DISTINCT = 200  # images or records that differ; shards repeat them under other keys


@dataclass(frozen=True)
class Shape:
    """What shards hold: `shards` of them with `samples` each, every record of about `size` bytes.

    With `size` 0 they are JPEGs of `pixels`, height and width.
    """

    name: str
    shards: int
    samples: int
    size: int = 0
    pixels: tuple = (375, 500)

    def names(self):
        return [f"{self.name}-{self.shards}x{self.samples}-{index:03d}.tar" for index in range(self.shards)]

    @property
    def template(self):
        return f"{self.name}-{self.shards}x{self.samples}-{{000..{self.shards - 1:03d}}}.tar"

    @property
    def prefix(self):
        return f"{self.name}-{self.shards}x{self.samples}-"


JPEG = Shape("jpeg", shards=8, samples=500)  # 8 x 56 MB
SMALL = Shape("small", shards=4, samples=5000, size=4_000)  # 4 x 28 MB
LARGE = Shape("large", shards=8, samples=25, size=2_000_000)  # 8 x 50 MB
PHOTO = Shape("photo", shards=4, samples=24, pixels=(3000, 4000))  # 4 x 70 MB
PHOTOS = 8  # that differ: one takes a second to make


def of_shard_size(megabytes):
    """Shapes of growing shards for the memory case: together at least 200 MB, of 100 KB records."""
    return Shape(f"mb{megabytes}", max(2, 200 // megabytes), megabytes * 10, 99_000)


def cache():
    folder = os.environ.get("TORCHDATA_AIS_BENCH_DATA")
    path = pathlib.Path(folder) if folder else pathlib.Path(tempfile.gettempdir(), "torchdata-ais-bench")
    path.mkdir(parents=True, exist_ok=True)
    return path


def picture(rng):
    """A JPEG of about 110 KB, 500x375: noise whose spectrum falls as in photographs, and a few shapes."""
    height, width = 375, 500
    rows, columns = np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None]
    falloff = 1 / np.maximum(np.hypot(rows, columns), 1 / width) ** 1.1
    planes = []
    for _ in range(3):
        phase = np.exp(2j * np.pi * rng.random(falloff.shape))
        plane = np.fft.irfft2(falloff * phase, s=(height, width))
        planes.append((plane - plane.mean()) / plane.std())
    shared = planes[0]
    pixels = 128 + 38 * np.stack([shared + 0.35 * plane for plane in planes], axis=-1)
    for _ in range(4):
        top, left = rng.integers(0, height - 60), rng.integers(0, width - 60)
        tall, wide = rng.integers(20, 60, 2)
        pixels[top : top + tall, left : left + wide] += rng.normal(0, 40, 3)
    file = io.BytesIO()
    image = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
    image.save(file, "JPEG", quality=int(rng.integers(88, 95)))
    return file.getvalue()


def photograph(rng, pixels):
    """A JPEG of a camera's size: what `picture` draws, enlarged, with the noise of a sensor over it."""
    height, width = pixels
    small = Image.open(io.BytesIO(picture(rng)))
    large = np.asarray(small.resize((width, height), Image.Resampling.BICUBIC)).astype(np.int16)
    noisy = large + rng.normal(0, 6, large.shape).astype(np.int16)
    file = io.BytesIO()
    Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8)).save(file, "JPEG", quality=90)
    return file.getvalue()


def records(shape):
    """The distinct records of a shape."""
    rng = np.random.default_rng(20240607)
    if shape.size:
        count = min(DISTINCT, max(1, 40_000_000 // shape.size))
        return [rng.bytes(shape.size + int(rng.integers(0, 200))) for _ in range(count)]
    if shape.pixels != JPEG.pixels:
        return [photograph(rng, shape.pixels) for _ in range(PHOTOS)]
    return [picture(rng) for _ in range(DISTINCT)]


def pictures(shape=JPEG):
    """The bytes of the JPEGs, for what needs no shards."""
    path = cache() / ("pictures.tar" if shape.pixels == JPEG.pixels else f"{shape.name}s.tar")
    if not path.exists():
        found = [("jpg", data) for data in records(shape)]
        _write(path, found, 0, len(found))
    with tarfile.open(path) as tar:
        return [tar.extractfile(info).read() for info in tar if info.name.endswith(".jpg")]


def _write(path, data, first, samples):
    unfinished = path.with_suffix(".part")
    with tarfile.open(unfinished, "w", format=tarfile.USTAR_FORMAT) as tar:
        for index in range(first, first + samples):
            field, content = data[index % len(data)]
            label = str(index % 1000).encode()
            note = json.dumps({"index": index, "text": f"record {index} of the benchmark"}).encode()
            for name, value in ((field, content), ("cls", label), ("json", note)):
                info = tarfile.TarInfo(f"{index:08d}.{name}")
                info.size = len(value)
                tar.addfile(info, io.BytesIO(value))
    unfinished.rename(path)


def put(client, shape):
    """Make the shards of a shape and put those that are missing."""
    bucket = client.bucket(BUCKET).create(exist_ok=True)
    there = {entry.name for entry in bucket.list_all_objects(prefix=shape.prefix)}
    missing = [index for index, name in enumerate(shape.names()) if name not in there]
    if not missing:
        return
    data = [("bin" if shape.size else "jpg", record) for record in records(shape)]
    with tempfile.TemporaryDirectory(dir=cache()) as folder:
        for index in missing:
            path = pathlib.Path(folder, "shard.tar")
            _write(path, data, index * shape.samples, shape.samples)
            bucket.object(shape.names()[index]).get_writer().put_file(path)


@contextlib.contextmanager
def served(shapes, faults=()):
    """Yield the endpoint of a cluster that has these shapes."""
    from aistore.sdk import Client

    endpoint = os.environ.get("AIS_ENDPOINT")
    if endpoint:
        if faults:
            raise SystemExit("a real cluster cannot be slowed down: unset AIS_ENDPOINT for this case")
        for shape in shapes:
            put(Client(endpoint), shape)
        yield endpoint
        return
    with LocalCluster(targets=2, root=cache() / "cluster") as cluster:
        for shape in shapes:
            put(cluster.client(), shape)
        for fault in faults:
            cluster.faults.add(fault)
        yield cluster.endpoint
