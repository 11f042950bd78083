"""Hugging Face: to_hf and trainer_callback."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchdata_ais._util.arguments import checked
from torchdata_ais._util.files import open_regular
from torchdata_ais._util.versions import require
from torchdata_ais._util.world import World
from torchdata_ais.errors import StateError, UsageError
from torchdata_ais.loaders import AISLoader, merge_states
from torchdata_ais.loaders.instance import InstancePlan, begin
from torchdata_ais.pipes.base.pipe import IterDataPipe
from torchdata_ais.pipes.base.torch_pipes import deepcopy_pipe
from torchdata_ais.pipes.planned.batches import check_planned
from torchdata_ais.ranks.listing import Listing, shard_instance
from torchdata_ais.ranks.rendezvous import begin_together
from torchdata_ais.samples import Fields


@checked
def to_hf(pipe: IterDataPipe[object], *, parts: int | None = None, seed: int = 0) -> Any:
    """Return a stream as a ``datasets.IterableDataset``.

    Args:
        pipe: A pipe that gives one dict a sample, such as ``.decode()`` does: no batches, for Hugging Face's classes
            batch themselves.
        parts: Parts that workers and ranks share out (`num_shards` there); default one a shard of the listing, at most
            1,024. Each sample is in one of them.
        seed: Of the pipe's random numbers. It draws the same in each epoch; ``dataset.shuffle(seed=...)`` with
            ``set_epoch(n)`` changes the order of the parts.

    Returns:
        An ``IterableDataset``: ``split_dataset_by_node``, `DataLoader` with workers, ``Trainer(train_dataset=...)``,
        ``state_dict()`` and ``load_state_dict()`` work as theirs. A resume reads the parts under way again from their
        beginning, as they do; `ais_loader` would not.

    Raises:
        MissingLibraryError: Hugging Face's datasets are not installed.
        UsageError: The pipe reads by index (Trainer takes `SampleDataset` there), or cannot be copied.

    Example::

        dataset = to_hf(AISSourceLister("ais://pets/train-").load_tar().group_samples().decode())
        next(iter(dataset))["cls"]
    """
    datasets = require("datasets", "to_hf()")
    if check_planned(pipe) is not None:
        raise UsageError.at(
            "to_hf() of a pipe that reads by index",
            todo="pass SampleDataset(index, transform) as train_dataset, or a loader: see the guide",
        )
    listing, _ = begin_together(pipe, World(0, 1), {}, 0)
    count = parts or min(1024, max(1, listing.shards))
    return datasets.IterableDataset.from_generator(
        _samples, gen_kwargs={"parts": list(range(count)), "source": _Source(pipe, listing, count, seed)}
    )


@dataclass
class _Source:
    """The pipe in `count` parts."""

    pipe: IterDataPipe[object]
    listing: Listing
    count: int
    seed: int

    def part(self, number: int) -> Iterator[Any]:
        pipe = deepcopy_pipe(self.pipe)  # two iterators of the dataset may be at different samples
        shard_instance(pipe, self.count, number)
        begin(pipe, InstancePlan.of(self.seed, 0, self.count, number))
        with self.listing.on(pipe):
            for sample in pipe:
                if not isinstance(sample, Mapping):
                    raise UsageError.at(
                        f"to_hf() was given a pipe of items of type {type(sample).__name__}",
                        todo="let the last stage give one dict a sample: leave out to_tuple() and batched()",
                    )
                yield {
                    name: value
                    for name, value in sample.items()
                    if not name.startswith("__") or name == "__key__"
                }


def _samples(parts: list[int], source: _Source) -> Iterator[Fields]:
    for number in parts:
        yield from source.part(number)


@checked
def trainer_callback(loader: AISLoader, resume_from: str | Path | None = None) -> Any:
    """Return a Trainer callback that saves the state of `loader`.

    It is for Hugging Face's Trainer, and saves in its checkpoints. The Trainer reads the loader from an overridden
    ``get_train_dataloader``, and gets ``TrainingArguments(ignore_data_skip=True)``: the loader resumes by itself, and
    reads nothing twice.

    Args:
        loader: The result of ``get_train_dataloader``; its number of steps is known (by index, or ``epoch_steps=``).
        resume_from: The checkpoint's folder that ``trainer.train(resume_from_checkpoint=...)`` is given.

    Returns:
        A ``transformers.TrainerCallback``: each rank writes ``loader-RANK.json`` next to the model, which any number
        of ranks can resume from.

    Raises:
        MissingLibraryError: transformers are not installed.
        StateError: The checkpoint has no state of a loader, or one of other data.

    Example::

        callback = trainer_callback(loader, resume_from=checkpoint)
        trainer = MyTrainer(model, arguments, callbacks=[callback])
        trainer.train(resume_from_checkpoint=checkpoint)
    """
    base = require("transformers", "trainer_callback()").TrainerCallback
    if resume_from is not None:
        loader.load_state_dict(_state_in(Path(resume_from)))

    class LoaderState(base):  # type: ignore[valid-type,misc]
        """Writes the state where the Trainer has written the model."""

        def on_save(self, args: Any, state: Any, _control: object, **_: object) -> None:
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            folder.mkdir(parents=True, exist_ok=True)  # another rank may be first
            file = folder / f"loader-{args.process_index}.json"
            file.write_text(json.dumps(loader.state_dict()))

    return LoaderState()


def _state_in(folder: Path) -> dict[str, Any]:
    files = sorted(folder.glob("loader-*.json"))
    if not files:
        raise StateError.at(
            f"there is no state of a loader in {folder}",
            todo="resume from a checkpoint that was written with trainer_callback(loader) among the callbacks",
        )
    return merge_states([_read(file) for file in files])


def _read(path: Path) -> Any:
    try:
        with open_regular(path, follow=False) as file:
            return json.loads(file.read())
    except (OSError, ValueError, RecursionError) as error:
        raise StateError.at(
            f"{path}: the state of a rank cannot be read ({getattr(error, 'strerror', None) or error})",
            todo="resume from another checkpoint",
        ) from error
