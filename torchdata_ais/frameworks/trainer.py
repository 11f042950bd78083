"""`trainer_callback`: a loader's state in the checkpoints of Hugging Face's Trainer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torchdata_ais.arguments import checked
from torchdata_ais.codecs.optional import require
from torchdata_ais.errors import StateError
from torchdata_ais.loaders import AISLoader, merge_states
from torchdata_ais.whole_file import open_regular


@checked
def trainer_callback(loader: AISLoader, resume_from: str | Path | None = None) -> Any:
    """Return a callback of Hugging Face's Trainer that keeps the state of `loader` in its checkpoints.

    The Trainer reads the loader from an overridden ``get_train_dataloader``, and is told
    ``TrainingArguments(ignore_data_skip=True)``: the loader goes on by itself, and reads nothing twice.

    Args:
        loader: What ``get_train_dataloader`` returns; its number of steps is known (by index, or ``epoch_steps=``).
        resume_from: The checkpoint's folder that ``trainer.train(resume_from_checkpoint=...)`` is given.

    Returns:
        A ``transformers.TrainerCallback``: each rank writes ``loader-RANK.json`` beside the model, which any number of
        ranks can resume from.

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

        def on_save(self, args: Any, state: Any, _control: Any, **_: Any) -> None:
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            folder.mkdir(parents=True, exist_ok=True)  # another rank may be first
            _file(folder, args.process_index).write_text(json.dumps(loader.state_dict()))

    return LoaderState()


def _file(folder: Path, rank: int) -> Path:
    return folder / f"loader-{rank}.json"


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
