from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from torchdata_ais.errors import ConnectError, NotFoundError, ReadError, UsageError
from torchdata_ais.store import Retry, StoreOptions, list_each, list_objects, resolve_options
from torchdata_ais.store.objects import listing, pages
from torchdata_ais.store.objects.listing import options_with
from torchdata_ais.urls import ObjectURL, parse_url

NAMES = ["a/s-1.tar", "a/s-2.tar", "b.tar", "b.tar.idx", "x ü?&#%+.bin", "z{1,2}.tar"]
QUICK = Retry(attempts=3, backoff=0.0)


@pytest.fixture(scope="module")
def store(ais_cluster):
    return replace(resolve_options(endpoint=ais_cluster.endpoint), retry=QUICK)


@pytest.fixture(scope="module")
def bucket(ais_cluster):
    bucket = ais_cluster.client().bucket("store-listing").create(exist_ok=True)
    for number, name in enumerate(NAMES):
        bucket.object(name).get_writer().put_content(b"x" * number)
    yield bucket
    bucket.delete(missing_ok=True)


def names(urls):
    return [parse_url(url).name for url in urls]


def test_a_bucket_gives_all_names_sorted_with_what_is_known_of_them(bucket, store):
    for source in (bucket, "ais://store-listing", "ais://store-listing/"):
        urls = list_objects(source, options=store)
        assert names(urls) == sorted(NAMES)
        assert [url.size for url in urls] == list(range(len(NAMES)))
        assert all(
            isinstance(url, ObjectURL) and len(url.checksum) == 16 and url.version == "1" for url in urls
        )


def test_prefixes_add_up(bucket, store):
    assert names(list_objects("ais://store-listing/a/", options=store)) == NAMES[:2]
    assert names(list_objects("ais://store-listing/a/", prefix="s-2", options=store)) == ["a/s-2.tar"]
    assert names(list_objects(bucket, prefix="a/s-1", options=store)) == ["a/s-1.tar"]


def test_the_exact_name_of_a_shard_is_that_shard_alone(bucket, store):
    assert names(list_objects("ais://store-listing/b.tar", options=store)) == ["b.tar"]
    assert names(list_objects("ais://store-listing/b", options=store)) == ["b.tar", "b.tar.idx"]


def test_regex_is_searched_in_names(bucket, store):
    assert names(list_objects(bucket, regex=r"\.tar$", prefix="b", options=store)) == ["b.tar"]
    with pytest.raises(UsageError, match="no regular expression"):
        list_objects(bucket, regex="(", options=store)


def test_templates_and_groups_ask_nothing(ais_cluster, bucket, store):
    counted = hasattr(ais_cluster, "stats")
    if counted:
        ais_cluster.reset_stats()
    nowhere = StoreOptions(endpoint="http://127.0.0.1:9")
    urls = list_objects("ais://none/d/s-{08..10}.tar", options=nowhere)
    assert names(urls) == ["d/s-08.tar", "d/s-09.tar", "d/s-10.tar"]
    assert urls[0] == "http://127.0.0.1:9/v1/objects/none/d/s-08.tar?provider=ais"
    assert names(list_objects("ais://none/d/", template="s-{1..2}.tar", options=nowhere)) == [
        "d/s-1.tar",
        "d/s-2.tar",
    ]
    assert names(list_objects(bucket, template="{a,b}", prefix="b", options=store)) == ["b"]
    group = bucket.objects(obj_template="t-{1..3}.tar")
    assert names(list_objects(group, options=store)) == ["t-1.tar", "t-2.tar", "t-3.tar"]
    assert names(list_objects(bucket.objects(obj_names=["q", "p q"]), prefix="p", options=store)) == ["p q"]
    if counted:
        assert ais_cluster.stats().count("GET") == ais_cluster.stats().count("HEAD") == 0


def test_a_bucket_brings_its_own_endpoint(ais_cluster, bucket):
    urls = list_objects(bucket, options=StoreOptions(endpoint="http://127.0.0.1:9", retry=QUICK))
    assert all(url.startswith(ais_cluster.endpoint) for url in urls)


def test_a_bucket_brings_its_own_token_and_else_has_that_of_the_options(monkeypatch):
    from aistore.sdk import Client

    for name in ("AIS_CLIENT_CA", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "AIS_AUTHN_TOKEN"):
        monkeypatch.delenv(name, raising=False)

    options = StoreOptions("http://h:1", token="theirs", ca_cert="theirs.pem")
    own = options_with(Client("http://h:2", token="own", ca_cert="own.pem"), options)
    assert (own.endpoint, own.token, own.ca_cert) == ("http://h:2", "own", "own.pem")
    given = options_with(Client("http://h:2"), options)
    assert (given.endpoint, given.token, given.ca_cert) == ("http://h:2", "theirs", "theirs.pem")


def test_a_prefix_holds_for_the_names_of_a_template_of_urls(store):
    template = "http://h:1/v1/objects/b/{a,b}-{0..1}.tar?provider=ais"
    assert names(list_objects(template, prefix="b-", options=store)) == ["b-0.tar", "b-1.tar"]
    assert names(list_objects("ais://b/{a,b}-{0..1}.tar", prefix="b-", options=store)) == [
        "b-0.tar",
        "b-1.tar",
    ]


def test_other_providers_stand_behind_aistore():
    options = StoreOptions(endpoint="http://h:1")
    for scheme, provider in {"s3": "aws", "gs": "gcp", "az": "azure", "oci": "oci"}.items():
        (url,) = list_objects(f"{scheme}://b/{{o}}", options=options)
        assert url == f"http://h:1/v1/objects/b/%7Bo%7D?provider={provider}"


def test_transforms_are_named_in_the_url_and_the_facts_left_out(bucket, store):
    from aistore.sdk.etl import ETLConfig

    for etl in ({"etl_name": "crop"}, {"etl": ETLConfig("crop")}, {"etl": "crop"}):
        urls = list_objects(bucket, options=store, **etl)
        assert all(parse_url(url).params == {"etl_name": "crop"} for url in urls)
        assert {(url.size, url.checksum, url.version) for url in urls} == {(None, None, None)}
    (url,) = list_objects("ais://b/{o}", etl=ETLConfig("crop", {"w": 1}), options=store)
    assert parse_url(url).params == {"etl_name": "crop", "etl_args": '{"w":1}'}
    again = list_objects(url, options=store)
    assert again == [url]
    known = ObjectURL(f"{store.endpoint}/v1/objects/b/o?provider=ais", size=3, version="1")
    (url,) = list_objects(known, etl_name="crop", options=store)
    assert url.endswith("?provider=ais&etl_name=crop")
    assert url.size is None


def test_urls_and_paths_are_taken_as_they_are(tmp_path, store):
    known = ObjectURL(
        "http://h:1/v1/objects/b/a%20b.tar?provider=ais", size=3, checksum="f" * 16, version="1"
    )
    (url,) = list_objects(known, options=store)
    assert url is known
    for text in ("http://h/plain.tar?x={1,2}", "-", "/no/such.tar", "file:///no/such.tar"):
        assert len(list_objects(text, options=store)) == 1
    template = "http://h:1/v1/objects/b/s-{0..1}.tar?provider=ais"
    assert names(list_objects(template, options=store)) == ["s-0.tar", "s-1.tar"]
    for name in ("b.tar", "a.tar", "c.txt"):
        (tmp_path / name).touch()
    found = [str(tmp_path / name) for name in ("a.tar", "b.tar")]
    assert list_objects(f"{tmp_path}/*.tar", options=store) == found
    assert list_objects(tmp_path / "{a,b}.tar", options=store) == found


def test_anything_with_the_interface_of_a_source_is_one(store):
    class Mine:
        def list_urls(self, prefix="", etl=None):
            yield from (f"http://h:1/v1/objects/b/{prefix}{n}?provider=ais" for n in "ba")

    assert names(list_objects(Mine(), prefix="p", options=store)) == ["pa", "pb"]

    from aistore.sdk import Bucket

    class MyBucket(Bucket):
        list_urls = Mine.list_urls

    source = MyBucket("b", client=None)
    assert names(list_objects(source, prefix="q", options=store)) == ["qa", "qb"]


def test_nothing_found_is_an_error_that_names_bucket_and_prefix(bucket, store):
    for source, more, words in (
        ("ais://store-listing/zz", {"prefix": "y"}, ["ais://store-listing/zz", "'y'"]),
        (bucket, {"prefix": "zz"}, ["store-listing", "'zz'"]),
        (bucket, {"regex": "nothing"}, ["store-listing", "nothing", f"{len(NAMES)} were listed"]),
        (bucket, {"template": "{a,b}", "prefix": "c"}, ["store-listing", "{a,b}"]),
    ):
        with pytest.raises(NotFoundError) as caught:
            list_objects(source, options=store, **more)
        assert all(word in str(caught.value) for word in words)
        assert list_objects(source, options=store, allow_empty=True, **more) == []


def test_an_unknown_bucket_is_named(store):
    with pytest.raises(NotFoundError, match="ais://no-such-bucket") as caught:
        list_objects("ais://no-such-bucket/x", options=store)
    assert "404" in str(caught.value)


def test_an_unreachable_endpoint_is_named_soon(bucket):
    from aistore.sdk import Client

    nowhere = StoreOptions(endpoint="http://127.0.0.1:9", retry=QUICK)
    for source in ("ais://b", Client("http://127.0.0.1:9").bucket("b")):
        with pytest.raises(ConnectError, match="AIS_ENDPOINT") as caught:
            list_objects(source, options=nowhere)
        assert "127.0.0.1:9" in str(caught.value)
        assert caught.value.attempt == 3


def test_no_endpoint_is_a_usage_error():
    for source in ("ais://b", "ais://b/s-{0..1}.tar"):
        with pytest.raises(UsageError, match=r"cluster=.*AIS_ENDPOINT"):
            list_objects(source, options=StoreOptions())


@pytest.mark.parametrize("source", [3, None, b"ais://b", "gopher://b", "", "ais://", ["ais://b"]])
def test_what_is_no_source_is_refused(source, store):
    with pytest.raises(UsageError):
        list_objects(source, options=store)


def test_a_template_needs_a_bucket(bucket, store):
    for source in ("http://h:1/v1/objects/b/o?provider=ais", "/path", bucket.objects(obj_names=["o"])):
        with pytest.raises(UsageError, match="template="):
            list_objects(source, template="{a,b}", options=store)


@pytest.fixture(scope="module")
def many(ais_cluster):
    """A bucket of 40 shards and a file next to each, below `train/`, and 60 other objects."""
    bucket = ais_cluster.client().bucket(f"store-listing-many-{os.getpid()}").create()
    for number in range(40):
        for kind in ("tar", "tar.idx"):
            bucket.object(f"train/{number:03}.{kind}").get_writer().put_content(b"x" * number)
    for number in range(60):
        bucket.object(f"val/{number:03}.bin").get_writer().put_content(b"")
    yield f"ais://{bucket.name}/"
    bucket.delete(missing_ok=True)


def requests_of(ais_cluster, run):
    """Return what `run` returns, and how many requests for pages it took."""
    ais_cluster.reset_stats()
    found = run()
    return found, ais_cluster.stats().count("GET")


@pytest.mark.parametrize(
    ("below", "requests"),
    [
        ([f"train/{n:03}.tar" for n in range(40)], 1),
        ([f"train/{n:03}.tar" for n in (*range(30, 20, -1), 30)], 1),
        ([f"train/{n:03}" for n in range(8)], 1),
        ([f"train/{n:03}.tar" for n in range(7)], 7),
        (["train/003.tar", *["val/00"] * 8], 1),
        (["train/003.tar", *["val/00"] * 5], 6),
        ([f"train/{n}" for n in ("", "0", "00", "01", "02", "03", "000.tar", "001.tar", "039.tar")], 1),
    ],
)
def test_many_names_of_a_bucket_take_one_listing(ais_cluster, many, store, below, requests):
    sources = [many + name for name in below]
    expected = [list_objects(source, options=store) for source in sources]
    found, made = requests_of(ais_cluster, lambda: list(list_each(sources, options=store)))
    assert found == expected
    assert [[(url.size, url.checksum, url.version) for url in urls] for urls in found] == [
        [(url.size, url.checksum, url.version) for url in urls] for urls in expected
    ]
    assert made == requests
    together, made = requests_of(ais_cluster, lambda: list_objects("::".join(sources), options=store))
    assert together == [url for urls in expected for url in urls]
    assert made == requests


@pytest.mark.parametrize(("count", "requests"), [(10, 1), (9, 1 + 9)])
def test_many_names_among_far_more_objects_are_listed_one_by_one(
    ais_cluster, many, store, monkeypatch, count, requests
):
    """The names of 20 objects begin with `train/00`; a page more is not read."""
    monkeypatch.setattr(listing, "_LISTED_PER_NAME", 2)
    sources = [f"{many}train/{n:03}.tar" for n in range(count)]
    found, made = requests_of(ais_cluster, lambda: list(list_each(sources, options=store)))
    assert [names(urls) for urls in found] == [[f"train/{n:03}.tar"] for n in range(count)]
    assert made == requests


def test_a_name_that_is_not_there_is_named_among_many(many, store):
    sources = [f"{many}train/{n:03}.tar" for n in range(45)]
    with pytest.raises(NotFoundError, match=r"train/040\.tar: no object"):
        list(list_each(sources, options=store))
    found = list(list_each(sources, options=store, allow_empty=True))
    assert [len(urls) for urls in found] == [1] * 40 + [0] * 5


def test_prefixes_and_transforms_hold_for_many_names(ais_cluster, many, store):
    sources = [f"{many}train/0{n:02}" for n in range(10)]
    found, made = requests_of(
        ais_cluster, lambda: list(list_each(sources, prefix=".tar.i", etl_name="crop", options=store))
    )
    assert [names(urls) for urls in found] == [[f"train/0{n:02}.tar.idx"] for n in range(10)]
    assert all(parse_url(url).params == {"etl_name": "crop"} for (url,) in found)
    assert made == 1


def test_a_bucket_with_its_own_client_is_not_listed_by_another(ais_cluster, many, store):
    own = ais_cluster.client().bucket(many.removeprefix("ais://").rstrip("/"))
    sources = [own, f"{many}val/000.bin", *(f"{many}train/{n:03}.tar" for n in range(8))]
    found, made = requests_of(ais_cluster, lambda: list(list_each(sources, options=store)))
    assert [len(urls) for urls in found] == [140, *[1] * 9]
    assert made == 2


@pytest.fixture
def paged(ais_client, ais_bucket, monkeypatch):
    """A bucket of 25 objects that are listed in pages of four."""
    for number in range(25):
        ais_bucket.object(f"{number:03}").get_writer().put_content(b"")
    monkeypatch.setattr(pages, "_PAGE_NAMES", 4)
    return ais_bucket


def test_long_listings_come_in_pages(paged, store):
    assert names(list_objects(paged, options=store)) == [f"{number:03}" for number in range(25)]


def test_a_page_that_fails_is_asked_for_again(paged, store, ais_faults):
    from torchdata_ais.local import Status

    rule = ais_faults.add(Status(503), verb="LIST", nth={2, 3, 5})
    assert names(list_objects(paged, options=store)) == [f"{number:03}" for number in range(25)]
    assert ais_faults.fired(rule) == 3
    ais_faults.clear()
    ais_faults.add(Status(503), verb="LIST")
    with pytest.raises(ReadError, match="tried 3 times"):
        list_objects(paged, options=store)


def test_a_union_gives_its_parts_in_order_and_a_folder_its_shards(tmp_path: Path) -> None:
    for name in ("b.tar", "a.tgz", "notes.txt", "c.tar.gz"):
        (tmp_path / name).write_bytes(b"")
    found = list_objects(f"http://[::1]:80/x.tar::{tmp_path}::y-{{0..1}}.tar", options=StoreOptions())
    assert found == [
        "http://[::1]:80/x.tar",
        *(str(tmp_path / name) for name in ("a.tgz", "b.tar", "c.tar.gz")),
        "y-0.tar",
        "y-1.tar",
    ]
