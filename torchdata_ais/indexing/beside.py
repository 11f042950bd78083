"""The place of an index beside the shards: where it is, and whether some shards are all that it is for."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import Any

from torchdata_ais.error_text import Remedy, in_commands, in_programs
from torchdata_ais.errors import UsageError
from torchdata_ais.index import fixed_beginning, index_place, named_shards
from torchdata_ais.shard_names import is_shard
from torchdata_ais.store import StoreOptions, list_objects
from torchdata_ais.urls import parse_url, redact


class Beside:
    """The place beside the shards of a source: for the index of all that begin as a template or a pattern does.

    Args:
        sources: What is indexed; several sources have no such place.
        options: How the shards are reached.
    """

    def __init__(self, sources: Any, options: StoreOptions) -> None:
        only = sources[0] if isinstance(sources, list | tuple) and len(sources) == 1 else sources
        self._source = os.fspath(only) if isinstance(only, str | os.PathLike) else None
        self._options = options

    @cached_property
    def place(self) -> str | None:
        """Where it is; None: there is none."""
        with suppress(UsageError):
            return None if self._source is None else index_place(self._source)
        return None

    @property
    def home(self) -> str | None:
        """Where the index lies by default; None for some of the shards there, whose index is another."""
        return None if self.place is None or self._not_named else self.place

    def refuse_part(self) -> None:
        """Raise `UsageError` if there are more shards than are named: the place is for all of them."""
        if self._source is not None and self._not_named:
            raise UsageError.at(
                f"there are more shards than {redact(self._source)} names, and the place beside them is for the index "
                f"of all: {self._not_named[0]} would not be in it",
                todo=Remedy(
                    f"index {_all_beside(self._source)}: a template then opens the samples of the shards that it names",
                    in_programs("pass where= for an index of these alone"),
                    in_commands("make an index of these alone: torchdata-ais index --where"),
                ),
            )

    @cached_property
    def _not_named(self) -> list[str]:
        """The shards that begin as those of a template or a pattern do, and are not named by it; listed once."""
        if self._source is None or (named := named_shards(self._source)) is None:
            return []
        settings = replace(
            self._options, endpoint=parse_url(self._source).at(self._options.endpoint).endpoint
        )
        there = list_objects(_all_beside(self._source), options=settings, allow_empty=True)
        return sorted(name for name in {parse_url(url).uri for url in there} - set(named) if is_shard(name))


def _all_beside(source: str) -> str:
    place = parse_url(source)
    beginning = fixed_beginning(place.name)
    return replace(place, name=beginning, params={}).uri if place.kind == "object" else f"{beginning}*"
