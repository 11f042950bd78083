"""Leave one unfinished iterator of every kind when the interpreter exits.

A module that is emptied after the package holds them, so the interpreter closes none of them before.
"""

import os
import sys

import torch

import torchdata_ais
from torchdata_ais import webdataset
from torchdata_ais.dataloader2 import DataLoader2, InProcessReadingService, MultiProcessingReadingService
from torchdata_ais.testing import example_shards

workers = int(sys.argv[1])
shards = example_shards(counts=(30, 30))
index = torchdata_ais.SampleIndex.build(shards)


def stream():
    return torchdata_ais.AISSourceLister(shards).load_tar().group_samples().decode().shuffled(5).batched(4)


def by_index():
    return torchdata_ais.AISSampleReader(index, shuffle="samples").decode().to_tuple("cls").batched(4)


def loader(pipe, **options):
    return torchdata_ais.ais_loader(pipe, num_workers=workers, seed=1, **options)


def torch_loader(data):
    return torch.utils.data.DataLoader(data, batch_size=None)


left = [
    loader(stream()),
    loader(by_index(), global_batch=8),
    DataLoader2(stream(), reading_service=MultiProcessingReadingService(num_workers=workers)),
]
if not workers:
    left += [
        torch_loader(stream()),  # with workers torch ends them by a signal, and may leave shared memory
        torch_loader(torchdata_ais.as_dataset(stream())),
        stream(),
        by_index(),
        (batch for batch in stream()),
        stream().map(len).prefetch(2),
        stream().zip(stream()),
        DataLoader2(stream().prefetch(1), reading_service=InProcessReadingService()),
        webdataset.WebDataset(shards, shardshuffle=False).decode().to_tuple("cls").batched(4),
    ]
running = [iter(one) for one in left]
for iterator in running:
    next(iterator)
with loader(stream()) as closed:
    running.append(iter(closed))
    next(running[-1])
resumed = loader(stream())
running.append(iter(resumed))
next(running[-1])
resumed.load_state_dict(resumed.state_dict())
os.left = left, running, resumed
print(len(running), "left")
