"""`as_node`: a pipe as a node of ``torchdata.nodes``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torchdata_ais._util.arguments import checked
from torchdata_ais._util.versions import require
from torchdata_ais.loaders import AISLoader


@checked
def as_node(loader: AISLoader) -> Any:
    """Return a loader as a node of ``torchdata.nodes``, with its state.

    Args:
        loader: An `ais_loader`.

    Returns:
        A ``torchdata.nodes.BaseNode``: the source of ``Mapper``, ``Prefetcher``, ``MultiNodeWeightedSampler``, ... and
        ``torchdata.nodes.Loader``. Its state is that of the loader, so it resumes as `ais_loader` does: by index on any
        number of ranks and workers. Its ``close()`` ends the workers; so does the end of the program.

    Raises:
        MissingLibraryError: torchdata is not there, or older than 0.10, which brought its nodes.
        UsageError: It is not a loader.

    Example::

        from torchdata.nodes import Loader, Prefetcher

        loader = Loader(Prefetcher(as_node(ais_loader(pipe, num_workers=4)), prefetch_factor=2))
        state = loader.state_dict()
    """
    base = require("torchdata.nodes", "as_node()", package="torchdata>=0.10").BaseNode

    class LoaderNode(base):  # type: ignore[valid-type,misc]
        """An epoch of the loader from each `reset` on."""

        def __init__(self) -> None:
            super().__init__()
            self._items: Iterator[object] = iter(())

        def reset(self, initial_state: dict[str, Any] | None = None) -> None:
            super().reset(initial_state)
            if initial_state is not None:
                loader.load_state_dict(initial_state)
            self._items = iter(loader)

        def next(self) -> Any:
            return next(self._items)

        def get_state(self) -> dict[str, Any]:
            return loader.state_dict()

        def close(self) -> None:
            """End the workers."""
            loader.close()

    return LoaderNode()
