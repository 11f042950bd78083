"""Names of objects taken apart and put together: name spaces, empty parameters, addresses with a password."""

from __future__ import annotations

from typing import Any

import pytest
from aistore.sdk import Client

from torchdata_ais.urls import Location, ObjectURL, bucket_place, object_url, parse_url, parsing


@pytest.mark.parametrize(
    ("url", "namespace"),
    [
        ("ais://#space/b/o", "@#space"),
        ("ais://@uuid#space/b/o", "@uuid#space"),
        ("ais://@uuid/b/o", "@uuid#"),
        ("ais://b/@x#y/o", ""),
    ],
)
def test_a_name_space_stands_before_the_bucket(url: str, namespace: str) -> None:
    place = parse_url(url)
    assert (place.namespace, place.bucket) == (namespace, "b")
    assert parse_url(place.at("http://h:1").url()) == place.at("http://h:1")
    assert parse_url(place.uri) == place


@pytest.mark.parametrize(
    ("query", "provider", "params"),
    [
        ("", "ais", {}),
        ("?provider=", "ais", {}),
        ("?provider=s3", "aws", {}),
        ("?provider=gcp&etl_name=x&etl_args=", "gcp", {"etl_name": "x", "etl_args": ""}),
    ],
)
def test_the_query_of_an_object_url_is_kept(query: str, provider: str, params: dict[str, str]) -> None:
    expected = Location("object", "o.tar", "b", provider, "", "http://h:1", params)
    assert parse_url(f"http://h:1/v1/objects/b/o.tar{query}") == expected


@pytest.mark.parametrize("path", ["", "/", "/ais", "/ais/"])
def test_an_address_is_that_of_the_cluster_whoever_names_it(path: str) -> None:
    wanted = f"http://h:51080{path.rstrip('/')}/v1/objects/b/o?provider=ais"
    named: list[Any] = [f"http://h:51080{path}", Client(f"http://h:51080{path.rstrip('/')}/")]
    assert [object_url(cluster, "b", "o") for cluster in named] == [wanted, wanted]


def test_the_password_of_the_environments_address_stands_in_no_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIS_ENDPOINT", "http://me:se@cret@h:51080/ais")
    assert object_url(None, "b", "o") == "http://h:51080/ais/v1/objects/b/o?provider=ais"


def test_a_bucket_of_the_sdk_brings_provider_and_name_space() -> None:
    from aistore.sdk.types import Namespace

    bucket = Client("http://h:1").bucket("b", provider="gcp", namespace=Namespace(uuid="u", name="n"))
    assert bucket_place(bucket) == Location("object", "", "b", "gcp", "@u#n")
    assert bucket_place("b", "s3", "@u#n") == Location("object", "", "b", "aws", "@u#n")


def test_what_was_parsed_once_is_handed_down(monkeypatch):
    """A shard's URL is parsed where it enters load_tar, and nowhere below."""
    from torchdata_ais import AISFileLoader
    from torchdata_ais.testing import example_shards

    shards = example_shards(counts=(2, 3))
    parsed = []
    really = parsing._parse
    monkeypatch.setattr(parsing, "_parse", lambda url: parsed.append(url) or really(url))
    assert len(list(AISFileLoader(shards).group_samples())) == 5
    assert parsed == shards


def test_a_location_keeps_what_was_written_and_known():
    url = ObjectURL(
        "http://me:pass@h:1/v1/objects/b/s.tar?provider=ais", size=7, checksum="c" * 16, version="3"
    )
    place = parse_url(url)
    assert place.written is url
    assert parse_url(place) is place
    assert place.shown == "http://***@h:1/v1/objects/b/s.tar?provider=ais"
    assert "pass" not in repr(place)
    assert place.at("http://other") is place
    assert parse_url("ais://b/s.tar").at("http://h").written == "ais://b/s.tar"


def test_a_name_that_is_not_utf8_is_an_address_of_these_bytes() -> None:
    assert parse_url("ais://b/caf\udce9.tar").at("http://h:1").url().endswith("/b/caf%E9.tar?provider=ais")
