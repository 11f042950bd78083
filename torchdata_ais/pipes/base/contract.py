"""Contract of a stage.

Who looks at a pipe asks `stage_of(pipe)` by these names and knows no concrete stage. A stage overrides what is
different from the defaults, and nothing else is looked up in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from torchdata_ais.errors.redaction import clean

if TYPE_CHECKING:
    from torchdata_ais.pipes.base.collate import BatchRows, Memory
    from torchdata_ais.pipes.base.meter import StageStats
    from torchdata_ais.pipes.base.seed import EpochSeed
    from torchdata_ais.pipes.base.sources import StageTransport
    from torchdata_ais.state import GeneratorState, Part, ReaderState, StageState
    from torchdata_ais.store import PackedURLs

__all__ = ["Effect", "Gives", "Reader", "Stage"]


Gives = Literal["each", "fewer", "more", "batches", "unknown"]


class Effect(NamedTuple):
    """Effect of a stage on the items it takes in.

    Attributes:
        gives: One item for each, fewer, more, batches of `size`, or nothing that is known.
        size, partial: Items of a batch, and whether the last one may be smaller.
        mixes: Whether the order changes.
        holds: Whether items are held back between two that are given out.
        keeps_place: Whether items still know their place in the data set.
    """

    gives: Gives = "unknown"
    size: int = 1
    partial: bool = True
    mixes: bool = False
    holds: bool = False
    keeps_place: bool = True

    def length(self, taken: int | None) -> int | None:
        """Return how many items come of `taken`; None where that is not known.

        Example:
            >>> Effect("batches", 4).length(9), Effect("batches", 4, partial=False).length(9), Effect("fewer").length(9)
            (3, 2, None)
        """
        if taken is None or self.gives not in ("each", "batches"):
            return None
        return taken // self.size + (self.partial and taken % self.size > 0)


class MemoryBound(NamedTuple):
    """Upper bound of the items a stage holds in one process.

    Attributes:
        text: As `draw` prints it; empty for the one item that the stage is at work on.
        ahead: Bytes of it that are fetched ahead.
    """

    text: str = ""
    ahead: int = 0


def mib(size: int) -> str:
    """Return `size` in MiB.

    Example:
        >>> mib(3 << 19)
        '1.5 MiB'
    """
    return f"{size / (1 << 20):g} MiB"


class Stage:
    """The contract.

    Attributes:
        functional_name: The name the stage is chained by.
        resumable: Whether a checkpoint can pass through: it holds no items between two outputs, or reports them.
        reads: How many of the shards or objects that the stages above name it reads at the same time; 0 if none.
        splits: Whether it splits items over ranks and workers.
        ready: Whether its next item comes without waiting, once its sources' do.
        repeats: Whether an item may come twice in an epoch.
        planned: Whether it reads by a plan: order and number of its items are known before any is read.
        seed_per_instance: Whether instances of the stage in different workers must draw differently.
        hidden: Whether it belongs to a loader, and is shown nowhere.
        epoch_seed: What gives it its seed in each epoch, if it draws at random.
        stats: What it counted in this process.
        left_at: Where it was at work when its last iterator ended; see `busy_with`.
        loop: The method that iterates: whose code is at work when the stage is.
        gives, mixes, holds, keeps_place: Its `Effect`, where that does not depend on arguments.
        passes_on: Whether it gives the values of its items as they are, each at most once, in order, and keeps none.
        rows: Where it puts the images it makes: those of the batches to come, where it says `makes_rows`.
        transport: Where it gets endpoint and token from, if it needs them.
    """

    functional_name: str = ""
    resumable: bool = False
    reads: int = 0
    splits: bool = False
    ready: bool = False
    repeats: ClassVar[bool] = False
    planned: ClassVar[bool] = False
    seed_per_instance: ClassVar[bool] = False
    hidden: ClassVar[bool] = False
    loop: ClassVar[str] = "_items"
    gives: ClassVar[Gives] = "unknown"
    mixes: ClassVar[bool] = False
    holds: ClassVar[bool] = False
    keeps_place: ClassVar[bool] = True
    epoch_seed: EpochSeed | None = None
    stats: StageStats
    left_at: dict[str, Any] | None = None
    passes_on: ClassVar[bool] = False
    rows: BatchRows | None = None
    transport: StageTransport | None = None

    def arguments(self) -> str:
        """Return what `repr` shows between the parentheses, on one line."""
        return ""

    def identity(self) -> str:
        """Return the arguments that determine the items: a state requires them."""
        return self.arguments()

    def describe(self) -> str:
        """Return the stage with its arguments, on one line."""
        return clean(f"{self.functional_name or type(self).__name__}({self.arguments()})")

    def effect(self) -> Effect:
        """Return what the stage does to items, and so to their number."""
        return Effect(self.gives, mixes=self.mixes, holds=self.holds, keeps_place=self.keeps_place)

    def memory_bound(self) -> MemoryBound:
        """Return the most the stage holds in one process; by default one item."""
        return MemoryBound()

    def makes_rows(self) -> bool:
        """Return whether it makes images of one size, and puts them into `rows`."""
        return False

    def use_memory(self, memory: Memory) -> None:
        """Make the output in this memory: loaders call it on the last stage."""

    def count_named(self) -> int:
        """Return how many objects it names without having seen them, by templates."""
        return 0

    def packed(self) -> PackedURLs | None:
        """Return all items of an epoch, where they were listed before."""
        return None

    def busy_with(self) -> dict[str, Any]:
        """Return the place (``url``, ``key``) of the current item, if known."""
        return {}

    def counts(self) -> StageStats:
        """Return what the stage counted in this process."""
        return self.stats

    def held_places(self) -> Iterable[int]:
        """Return the places of the samples held, in the order they were taken."""
        return ()

    def save_state(self) -> GeneratorState | None:
        """Return the state of the running iterator's generator, if it has one."""
        return None

    def load_state(self, state: StageState, below: int) -> None:
        """Take up what was saved, for the next iteration.

        The `below` items that the stages below held come first, and have passed this stage before; then its own.
        """


class Reader(Stage):
    """A stage that reads shards, where a checkpoint's chain begins."""

    def save_position(self, held: Iterable[int]) -> ReaderState | None:
        """Return the running position; `held` are places held downstream."""
        raise NotImplementedError

    def load_part(self, part: Part, digests: tuple[str, str]) -> None:
        """Begin with the rest of `part`; `digests` of all shards: then, and now."""
        raise NotImplementedError
