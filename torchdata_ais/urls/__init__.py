"""Names of objects and members: what URLs and paths say, taken apart and put together."""

from torchdata_ais.redaction import redact
from torchdata_ais.urls.foreign_names import (
    ShardPlaces,
    below_fault,
    check_object,
    file_fault,
    folder_file_fault,
    index_file_fault,
    object_fault,
    path_fault,
    shown_name,
)
from torchdata_ais.urls.location import OBJECTS_PATH, PROVIDERS, Location, ObjectURL, no_cluster, shown_url
from torchdata_ais.urls.member_path import MemberPath
from torchdata_ais.urls.object_urls import etl_query, expand_object_urls, object_url
from torchdata_ais.urls.parsing import bucket_place, parse_url
from torchdata_ais.urls.templates import expand_template

__all__ = [
    "OBJECTS_PATH",
    "PROVIDERS",
    "Location",
    "MemberPath",
    "ObjectURL",
    "ShardPlaces",
    "below_fault",
    "bucket_place",
    "check_object",
    "etl_query",
    "expand_object_urls",
    "expand_template",
    "file_fault",
    "folder_file_fault",
    "index_file_fault",
    "no_cluster",
    "object_fault",
    "object_url",
    "parse_url",
    "path_fault",
    "redact",
    "shown_name",
    "shown_url",
]
