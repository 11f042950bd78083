"""The shards to index, with what the store knows of each without reading it."""

from __future__ import annotations

from typing import Any

from torchdata_ais.errors import NotFoundError, UsageError
from torchdata_ais.reading.listed import listed_objects
from torchdata_ais.store import StoreOptions, file_url, list_objects
from torchdata_ais.urls import ObjectURL, parse_url


def listed_shards(sources: Any, options: StoreOptions) -> list[ObjectURL]:
    """Return the shards of one source or several, each with its size, and checksum or version, where they are known.

    Raises:
        NotFoundError: One is not there.
        UsageError: One stands in the list twice.
    """
    named = sources if isinstance(sources, list | tuple) else [sources]
    urls = [url for source in named for url in list_objects(source, options=options)]
    seen: set[str] = set()
    for url in urls:
        name = parse_url(url).uri
        if name in seen:
            raise UsageError.at(f"the shard {name} is listed twice", todo="name it once", url=name)
        seen.add(name)
    return _with_facts(urls, options)


def _with_facts(urls: list[ObjectURL], options: StoreOptions) -> list[ObjectURL]:
    """Fill in what names alone do not say: files are looked at, and objects listed, a listing for each bucket."""
    places = [parse_url(url).at(options.endpoint) for url in urls]
    listed = listed_objects(
        [place for url, place in zip(urls, places, strict=True) if url.size is None], options
    )
    filled = []
    for url, place in zip(urls, places, strict=True):
        if url.size is not None:
            filled.append(url)
        elif place.kind == "file":
            filled.append(file_url(place.name))
        elif place.kind == "object" and not place.params:
            if place.uri not in listed:
                there = sum(one.uri in listed for one in places)
                raise NotFoundError.at(
                    f"{place.uri}: there is no such shard; of the {len(places)} that were named {there} are there",
                    todo="check the template",
                    url=place.uri,
                )
            filled.append(listed[place.uri])
        else:
            filled.append(url)
    return filled
