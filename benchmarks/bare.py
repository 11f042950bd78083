"""What any pipeline has to do and nothing else, each as a loop of its own: what is left for one to lose.

No error is looked for, nothing is counted, no sample has a key, and a pipe of another shape is another program.
"""

import itertools
import mmap
import multiprocessing
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import wait

import numpy as np
import shards
import torch

BATCH = 64
SIZE = 224
BATCH_BYTES = BATCH * 3 * SIZE * SIZE
SLOTS = 4  # batches that a process may be ahead, and one
AT_ONCE = 8  # pictures that a thread takes


class _Members:
    """The members of a tar archive out of blocks of any size, each copied once; headers are not looked at twice."""

    def __init__(self):
        self.header, self.pieces, self.missing, self.padding = b"", [], 0, 0

    def feed(self, block):
        """Yield (name, content) of those that are whole."""
        data, at = self.header + block if self.header else block, 0
        view, self.header = memoryview(data), b""
        while at < len(data):
            if self.missing:
                piece = view[at : at + self.missing]
                at, self.missing = at + len(piece), self.missing - len(piece)
                if self.missing or self.pieces:
                    self.pieces.append(bytes(piece))
                if not self.missing:
                    yield self.name, b"".join(self.pieces) if self.pieces else bytes(piece)
                    self.pieces = []
            elif self.padding:
                step = min(self.padding, len(data) - at)
                at, self.padding = at + step, self.padding - step
            elif len(data) - at < 512:
                self.header, at = data[at:], len(data)
            elif data[at]:
                self.name = data[at : data.index(b"\0", at)]
                self.missing = int(data[at + 124 : at + 135], 8)
                self.padding, at = -self.missing % 512, at + 512
            else:
                return  # the archive's end


def _records(job, names, field):
    """Yield (record, label): received, checked by XXH64, and each member copied once."""
    import urllib3
    import xxhash

    pool = urllib3.PoolManager()
    for name in names:
        url = f"{job['endpoint']}/v1/objects/{shards.BUCKET}/{name}?provider=ais"
        response = pool.request("GET", url, preload_content=False, decode_content=False)
        digest, members, record = xxhash.xxh64(), _Members(), None
        while block := response.read1(1 << 20):
            digest.update(block)
            for member, content in members.feed(block):
                kind = member.rpartition(b".")[2]
                if kind == field:
                    record = content
                elif kind == b"cls":
                    yield record, content
        if digest.hexdigest() != response.headers["Ais-Checksum-Value"]:
            raise SystemExit(f"{url}: the checksum differs")
        response.release_conn()
    pool.clear()


def _names(job):
    import torchdata_ais.urls

    return list(torchdata_ais.urls.expand_template(job["template"])) * job["repeat"]


def reading(job):
    """Records as they are, 64 in a batch: one process, one connection."""
    records = _records(job, _names(job), job["record"].encode())

    def batches():
        while rows := list(itertools.islice(records, BATCH)):
            yield tuple(zip(*rows, strict=True))

    return batches(), lambda: None


def _decode_into(data, place):
    import simplejpeg

    pixels = simplejpeg.decode_jpeg(data)
    planes = torch.from_numpy(pixels[None].transpose(0, 3, 1, 2))
    place[...] = torch._C._nn._upsample_bilinear2d_aa(planes, (SIZE, SIZE), False, None)[0].numpy()


def decoding(job):
    """JPEGs to batches of 224x224: by as many processes, straight into memory that is shared; or by two threads."""
    return (_in_processes(job) if job["workers"] else _in_threads(job)), lambda: None


def _produce(job, names, memory, free, done):
    torch.set_num_threads(1)
    slots = np.frombuffer(memory, np.uint8).reshape(SLOTS, BATCH, 3, SIZE, SIZE)
    records = _records(job, names, b"jpg")
    for slot in itertools.cycle(range(SLOTS)):
        free.acquire()
        labels = []
        for place, (data, label) in zip(slots[slot], records):  # noqa: B905 - the last batch is smaller
            _decode_into(data, place)
            labels.append(int(label))
            if len(labels) == BATCH:
                break
        done.send((slot, labels))
        if len(labels) < BATCH:
            return


def _in_processes(job):
    names, count = _names(job), job["workers"]
    live = {}
    for number in range(count):
        memory = mmap.mmap(-1, SLOTS * BATCH_BYTES)
        free = multiprocessing.Semaphore(SLOTS - 1)
        here, there = multiprocessing.Pipe(duplex=False)
        process = multiprocessing.Process(
            target=_produce, args=(job, names[number::count], memory, free, there)
        )
        process.start()
        there.close()
        live[here] = (process, memory, free)
    while live:
        for here in wait(list(live)):
            process, memory, free = live[here]
            slot, labels = here.recv()
            whole = np.frombuffer(memory, np.uint8, BATCH_BYTES, slot * BATCH_BYTES)
            images = torch.from_numpy(whole).view(BATCH, 3, SIZE, SIZE)
            if labels:
                yield images[: len(labels)], torch.tensor(labels)
            free.release()
            if len(labels) < BATCH:
                process.join()
                del live[here]


def _decode_all(rows, places):
    for (data, _), place in zip(rows, places, strict=True):
        _decode_into(data, place)


def _in_threads(job):
    torch.set_num_threads(1)
    records = _records(job, _names(job), b"jpg")
    ahead = deque()
    with ThreadPoolExecutor(2) as threads:
        while rows := list(itertools.islice(records, BATCH)):
            images = np.empty((len(rows), 3, SIZE, SIZE), np.uint8)
            parts = [slice(first, first + AT_ONCE) for first in range(0, len(rows), AT_ONCE)]
            under_way = [threads.submit(_decode_all, rows[part], images[part]) for part in parts]
            ahead.append((images, [int(label) for _, label in rows], under_way))
            if len(ahead) > 1:
                yield _finished(*ahead.popleft())
        while ahead:
            yield _finished(*ahead.popleft())


def _finished(images, labels, under_way):
    for part in under_way:
        part.result()
    return torch.from_numpy(images), torch.tensor(labels)
