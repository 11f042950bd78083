"""Where the ranks of a loader meet, once, before its first batch: what is read, and who else reads it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torchdata_ais.errors import UsageError
from torchdata_ais.loaders.job_errors import JobErrors
from torchdata_ais.loaders.passes import Passes
from torchdata_ais.ranks.alive import Ranks
from torchdata_ais.ranks.job_counts import JobCounts
from torchdata_ais.ranks.listing import Listing
from torchdata_ais.ranks.presence import Presence
from torchdata_ais.ranks.rendezvous import begin_together, end_together
from torchdata_ais.ranks.replicas import Replicas
from torchdata_ais.ranks.start_up import wait_for_turn
from torchdata_ais.stage.pipe import IterDataPipe
from torchdata_ais.world import World, WorldOptions


class Meeting:
    """This rank among the others.

    Args:
        options: What the loader was told about ranks.

    Attributes:
        listing: What is read; None before the ranks have met.
        ranks: All ranks; None where there is one, or they cannot reach each other.
        replicas: Compares batches with the processes that get the same, if there are any.
        counts: What the ranks tell each other while they train; None where there is nobody to tell.
        errors: What of the job may be given up, if a stage says so.
    """

    def __init__(self, options: WorldOptions) -> None:
        self._options = options
        self._world: World | None = None
        self._presence: Presence | None = None
        self.listing: Listing | None = None
        self.ranks: Ranks | None = None
        self.replicas: Replicas | None = None
        self.counts: JobCounts | None = None
        self.errors: JobErrors | None = None

    @property
    def world(self) -> World:
        """This rank, and how many there are: asked for anew until they have met."""
        return self._world or self._options.find()

    @property
    def digest(self) -> str:
        """Of what is read, once the ranks have met."""
        return "" if self.listing is None else self.listing.digest

    @contextlib.contextmanager
    def awaited(self, loader: object) -> Iterator[None]:
        """Let the other ranks know that `loader` is being made, and of an error that comes while the context lasts.

        Args:
            loader: What meets the others here; it is not kept alive.
        """
        if self._presence is None and self.listing is None:
            with contextlib.suppress(UsageError):  # it is raised where the world is needed
                world = self._options.find()
                if world.members[1] > 1 and world.store is not None:
                    self._presence = Presence(loader, world)
        try:
            yield
        except Exception as error:
            self.failed(error)
            raise
        if self._presence is not None:
            self._presence.goes_on()

    def failed(self, error: Exception) -> None:
        """Let the other ranks know of an error before they have met."""
        if self._presence is not None:
            self._presence.failed(error)

    def join(self, pipe: IterDataPipe[Any], passes: Passes, epoch: int) -> None:
        """List what `pipe` reads and meet the other ranks, the first time.

        Args:
            pipe: The last stage.
            passes: What the ranks are about to do with it.
            epoch: The epoch that begins, if nothing else is under way.
        """
        if self.listing is None:
            self._leave_presence()
            world, timeout_s = self._options.find(), self._options.rank_timeout_s
            try:
                if world.size > 1:
                    passes.check(world)
                settings = passes.settings(epoch)
            except Exception as error:
                end_together(world, error, timeout_s)
                raise
            self.listing, self.ranks = begin_together(pipe, world, settings, timeout_s)
            self._world = world
            wait_for_turn(world, passes.workers, self._options.start_spread_s, self.ranks)
            every = self._options.replica_check
            processes = world.size * passes.workers
            errors = JobErrors(pipe, passes.reports, processes)
            if errors.limited and processes > 1:
                self.errors = errors
            if self.ranks is not None:
                if world.processes and every is not None:
                    self.replicas = Replicas(self.ranks, world, every)
                self.counts = JobCounts(self.ranks, errors.counted, self.replicas)
            passes.look_at()

    def close(self) -> None:
        """Leave."""
        self._leave_presence()
        if self.ranks is not None:
            self.ranks.close()

    def _leave_presence(self) -> None:
        presence, self._presence = self._presence, None
        if presence is not None:
            presence.end()
