"""Parsing and composing of URLs, object names and member names."""

from torchdata_ais.errors.redaction import redact
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
from torchdata_ais.urls.location import (
    OBJECTS_PATH,
    PROVIDERS,
    Location,
    ObjectURL,
    bucket_of,
    no_cluster,
    shown_url,
)
from torchdata_ais.urls.parsing import (
    MemberPath,
    bucket_place,
    etl_query,
    expand_object_urls,
    expand_template,
    object_url,
    parse_url,
)

__all__ = [
    "OBJECTS_PATH",
    "PROVIDERS",
    "Location",
    "MemberPath",
    "ObjectURL",
    "ShardPlaces",
    "below_fault",
    "bucket_of",
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
