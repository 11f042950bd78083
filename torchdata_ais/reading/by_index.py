"""Samples read by their references: in the order asked for, with a window of bytes ahead.

Neighbours in a shard come as one range; scattered samples as a batch of ranges, where the cluster has that and answers
it rightly (`Fetching`). A request is sent only when its bytes fit into the window. What came is looked at in the
consumer's thread: bytes that are not those of the sample are asked for once more, alone, before that is an error.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from torchdata_ais.errors import AISError, SampleIndexError
from torchdata_ais.reading.fetching import Chunk, Fetching, Piece, place_of
from torchdata_ais.reading.pieces import run_in
from torchdata_ais.reading.requests import Wanted, chunks_in, window_at_first
from torchdata_ais.reading.runs import Run
from torchdata_ais.store import ObjectCache, Stats, StoreOptions, keep_memory


@dataclass
class IndexedReader:
    """Reads samples by reference.

    Args:
        options: Transport settings of each source.
        window_bytes: What is asked for ahead at most, or one sample if that is larger.
        max_bytes: Bound on one sample; a larger one is a `SampleError`.
        cache: Where whole shards are kept, if they are to be.
        stats: Counts bytes, retries, and what the consumer waited for.

    Attributes:
        held: Bytes asked for and not yet given out.
        held_max: The most there were.
        refetched: Samples that were asked for once more, as other bytes had come.

    Memory: `window_bytes`, or the largest sample, and that sample's members; 512 KiB a batch under way (`ChunkedBody`).
    """

    options: Sequence[StoreOptions]
    window_bytes: int
    max_bytes: int | None = None
    cache: ObjectCache | None = None
    stats: Stats = field(default_factory=Stats)

    def __post_init__(self) -> None:
        self.held = self.held_max = self.refetched = 0
        self._fetching = Fetching(self.options, self.cache, self.stats)

    def read(self, wanted: Iterable[Sequence[Wanted]]) -> Iterator[tuple[Wanted, Run | AISError]]:
        """Yield each sample with its run, or with why there is none, in the order wanted.

        Args:
            wanted: Lists of any length: one is taken when there is room for it.
        """
        keep_memory()
        chunks = chunks_in(wanted, self.window_bytes)
        window: deque[Chunk] = deque()
        following: Chunk | None = None
        ahead = window_at_first(self.window_bytes)
        try:
            while True:
                while True:
                    if following is None:
                        taken = next(chunks, None)
                        following = None if taken is None else Chunk(taken)
                    if following is None or (window and self.held + following.size > ahead):
                        break
                    self.held += following.size
                    self.held_max = max(self.held_max, self.held)
                    self._fetching.ask(following)
                    window.append(following)
                    following = None
                if not window:
                    return
                chunk = window[0]
                for place, one in enumerate(chunk.wanted):
                    piece = self._fetching.piece(chunk, place)
                    chunk.pieces[place] = None
                    yield one, self._looked_at(one, piece)
                    del piece
                window.popleft()
                self.held -= chunk.size
                ahead = min(self.window_bytes, 2 * ahead)
        finally:
            self.close()

    def close(self) -> None:
        """End the requests under way."""
        self._fetching.close()

    def _looked_at(self, wanted: Wanted, piece: Piece, *, again: bool = True) -> Run | AISError:
        reference = wanted.reference
        if isinstance(piece, AISError):
            return piece
        try:
            return run_in(piece, reference, max_bytes=self.max_bytes)
        except SampleIndexError as error:
            if not again or place_of(reference.shard.name).kind == "file":
                return error
        except AISError as error:
            return error
        self.refetched += 1
        return self._looked_at(wanted, self._fetching.alone(wanted), again=False)
