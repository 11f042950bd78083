"""Train two towers to match captions and pictures, as CLIP does.

The loss is contrastive.

::

    python -m torchdata_ais.examples.train_captions --samples 400 --epochs 5
    python -m torchdata_ais.examples.train_captions --source ais://captions/train- --held-out ais://captions/val-

Pictures are ``jpg``, ``png`` or ``webp``, captions ``txt``. Words become numbers in the workers, with the batch. The
program ends with how often the caption of a held-out picture was found among those of its batch.
"""

from __future__ import annotations

import argparse
import tempfile
import zlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from torchdata_ais import ais_loader
from torchdata_ais.examples.captions import make_captioned_pets, named_or_drawn
from torchdata_ais.examples.train import SmallCNN, samples_of

WORDS = 1024
"""Number of rows of the table of words.

A word's row is its checksum, so no vocabulary is needed.
"""

LENGTH = 16
"""Words of a caption that count."""


def main() -> None:
    """Train, then look captions up."""
    arguments = _arguments()
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_num_threads(1)  # the workers need the other cores
    with tempfile.TemporaryDirectory() as folder:
        train, held_out = named_or_drawn(arguments, Path(folder), make_captioned_pets)
        model = TwoTowers().to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
        with ais_loader(
            make_pipe(train, arguments.batch, shuffle=True), num_workers=arguments.workers
        ) as loader:
            for epoch in range(arguments.epochs):
                losses = [
                    _step(model, optimizer, images.to(device), ids.to(device)) for images, ids, _ in loader
                ]
                print(f"epoch {epoch}: loss {sum(losses) / max(1, len(losses)):.3f}", flush=True)  # noqa: T201
        found, pictures = evaluate(model, make_pipe(held_out, arguments.batch, shuffle=False), device)
    print(f"{found} of {pictures} held-out pictures found their caption in batches of {arguments.batch}")  # noqa: T201


def make_pipe(source: object, batch: int, *, shuffle: bool) -> Any:
    """Return the chain to batches of (images, numbers of words, captions)."""
    pairs = samples_of(source, shuffle=shuffle).decode("torchrgb8", size=64).to_tuple("jpg;png;webp", "txt")
    return pairs.batched(batch, collation_fn=with_numbers)


def with_numbers(pairs: list[tuple[Tensor, str]]) -> tuple[Tensor, Tensor, list[str]]:
    """Put pictures and captions together; 0 fills captions up.

    Example:
        >>> images, ids, texts = with_numbers([(torch.zeros(3, 2, 2), "a cat"), (torch.zeros(3, 2, 2), "a red cat")])
        >>> (ids > 0).sum(1).tolist(), bool(ids[0, 0] == ids[1, 0])
        ([2, 3], True)
    """
    images, texts = zip(*pairs, strict=True)
    ids = torch.zeros(len(texts), LENGTH, dtype=torch.long)
    for row, text in zip(ids, texts, strict=True):
        numbers = [1 + zlib.crc32(word.encode()) % (WORDS - 1) for word in text.lower().split()[:LENGTH]]
        row[: len(numbers)] = torch.tensor(numbers)
    return torch.stack(images), ids, list(texts)


class TwoTowers(nn.Module):
    """A vector for a picture, a vector for a caption, and their scale."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.picture = SmallCNN(width)
        self.words = nn.EmbeddingBag(WORDS, width, mode="mean", padding_idx=0)
        self.caption = nn.Linear(width, width)
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, images: Tensor, ids: Tensor) -> Tensor:
        """Return the match of each picture (row) and each caption (column)."""
        pictures = nn.functional.normalize(self.picture(images), dim=1)
        captions = nn.functional.normalize(self.caption(self.words(ids)), dim=1)
        scores: Tensor = self.scale.exp() * pictures @ captions.T
        return scores


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, images: Tensor, ids: Tensor) -> float:
    scores = model(images, ids)
    own = torch.arange(len(scores), device=scores.device)
    loss = (nn.functional.cross_entropy(scores, own) + nn.functional.cross_entropy(scores.T, own)) / 2
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return float(loss.item())


@torch.no_grad()
def evaluate(model: nn.Module, pipe: Any, device: torch.device) -> tuple[int, int]:
    """Return the pictures with the right best caption, and all pictures.

    A caption of the batch is right if it is their own, or reads the same.
    """
    model.eval()
    found = pictures = 0
    with ais_loader(pipe) as loader:
        for images, ids, texts in loader:
            best = model(images.to(device), ids.to(device)).argmax(1).tolist()
            found += sum(texts[choice] == text for choice, text in zip(best, texts, strict=True))
            pictures += len(texts)
    return found, pictures


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", help="shards to train on; default: drawn pets")
    parser.add_argument("--held-out", help="shards to look up at the end")
    parser.add_argument("--samples", type=int, default=400, help="drawn pets, if no source is given")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=32)
    return parser.parse_args()


if __name__ == "__main__":
    main()
