"""Names of objects and members: what URLs and paths say, taken apart and put together."""

from torchdata_ais.redaction import redact
from torchdata_ais.urls.location import PROVIDERS, Location, ObjectURL, no_cluster, shown_url
from torchdata_ais.urls.member_path import MemberPath
from torchdata_ais.urls.object_urls import etl_query, expand_object_urls, object_url
from torchdata_ais.urls.parsing import bucket_place, parse_url
from torchdata_ais.urls.templates import expand_template

__all__ = [
    "PROVIDERS",
    "Location",
    "MemberPath",
    "ObjectURL",
    "bucket_place",
    "etl_query",
    "expand_object_urls",
    "expand_template",
    "no_cluster",
    "object_url",
    "parse_url",
    "redact",
    "shown_url",
]
