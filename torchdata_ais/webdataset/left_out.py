"""webdataset's names that are missing here, with reason and replacement."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NoReturn

from torchdata_ais._util.arguments import did_you_mean

_SCHEMES = (
    "a table that any import can change decides what a URL runs;"
    " give open files to tariterators.tar_file_expander: {'url': name, 'stream': file}"
)
_PROGRAM = "no program is run to read a URL; wds.gopen reads it, and runs a pipe: URL or Command([...]) without a shell"
_PICKLE = "it runs what lies in a file; decode(allow_pickle=True) loads pickles of your own"
_LMDB = "it unpickles what lies in a file; WebDataset(cache_dir=) keeps shards, wds.Cached() samples"
_ONE = "one value is decoded by wds.Decoder([])({'__key__': 'a', 'ext': data})"
_ENCODE = "one value is encoded by writer.make_encoder(True)({'__key__': 'a', 'ext': value})"
_OWN = "webdataset's inner working, which is another one here"
_CACHE = "cached shards are named by object, version and checksum, and checked for themselves"
_ENV = "no environment variable decides it; pass cache_dir= and cache_size="
_STACK = "stages are stacked by wds.DataPipeline(source, stage, ...)"
_SHARDS = "webdataset refuses it as obsolete; mix datasets with wds.RandomMix"
_EPOCH = "the class cannot be instantiated in webdataset; call .{}(n) of the dataset or loader"

_MODULES: dict[str, dict[str, str]] = {
    "": {
        "LMDBCached": _LMDB,
        "MultiShardSample": _SHARDS,
        "gopen_schemes": _SCHEMES,
        "pipe_cleaner": "cached shards are named by object, version and checksum",
        "with_epoch": _EPOCH.format("with_epoch"),
        "with_length": _EPOCH.format("with_length"),
        "typecheck": _OWN,
    },
    "autodecode": {
        "tenbin_loads msgpack_loads npy_loads npz_loads cbor_loads": _ONE,
        "call_extension_handler default_pre_handlers default_post_handlers default_decoder": _OWN,
    },
    "cache": {
        "pipe_cleaner magic_filetype get_filetype check_tar_format islocal download": _CACHE,
        "default_cache_dir default_cache_size verbose_cache": _ENV,
    },
    "extradatasets": {
        "with_epoch": _EPOCH.format("with_epoch"),
        "with_length": _EPOCH.format("with_length"),
        "repeatedly": "the class cannot be instantiated in webdataset; call .repeat(n), or use utils.repeatedly",
    },
    "filters": {
        "LMDBCached": _LMDB,
        "compose compose2 pipeline": _STACK,
        "decode_pickle": _PICKLE,
        "decode_bin decode_text find_decoder default_decoders": "decoders of your own are arguments of wds.xdecode",
        "RestCurried": "wds.pipelinefilter makes filters",
        "parse_field_spec combine_values tuple2dict dict2tuple": _OWN,
    },
    "gopen": {
        "gopen_schemes": _SCHEMES,
        "Pipe gopen_pipe gopen_curl gopen_htgs gopen_hf gopen_gsutil gopen_ais": _PROGRAM,
        "set_options": "it sets options of a program that is run; wds.Command(words, timeout=) has them",
        "reader": "wds.gopen(url) opens for reading",
        "info PIPE gopen_error": _OWN,
    },
    "mix": {
        "round_robin_shortest round_robin_longest random_samples": "use wds.RoundRobin and wds.RandomMix"
    },
    "pipeline": {"add_length_method": "call .with_length(n)"},
    "shardlists": {
        "MultiShardSample": _SHARDS,
        "envlookup envsubst expand": "shardlists.expand_urls does that with all the rest",
        "resampled_": "use wds.resampled",
        "check_pid_is_running without_last_extension get_pid_from_filename": _OWN,
    },
    "tariterators": {
        "shardlist": "use wds.SimpleShardList",
        "trace": "it prints each member; wds.info and wds.log_keys show samples",
        "meta_prefix meta_suffix": _OWN,
    },
    "tenbin": {
        "bytelen bytedata long_to_short short_to_long check_acceptable_input_type str64 unstr64 check_infos"
        " encode_header decode_header encode_list decode_list magic_str magic magic_bytes roundup encode_chunks"
        " decode_chunks write_chunk read_chunk write read save load": "use encode_buffer and decode_buffer",
    },
    "utils": {
        "safe_eval": "it evaluates text",
        "obsolete deprecated ObsoleteException is_iterable repeatedly0 compute_sample_weights": _OWN,
        "glob_with_braces fnmatch_with_braces": "a list of shards takes braces, and AISSourceLister patterns, too",
    },
    "writer": {
        "imageencoder bytestr numpy_npz_dumps tenbin_dumps cbor_dumps mp_dumps add_handlers default_handlers"
        " encode_based_on_extension1 encode_based_on_extension": _ENCODE,
        "make_handlers": "no table to change: pass TarWriter(encoder={'ext': function}), or a function of the sample",
    },
}

REASONS = {
    module: {name: reason for names, reason in entries.items() for name in names.split()}
    for module, entries in _MODULES.items()
}
"""Module of the facade ("" for the package) -> name -> why it is not there, and what to write instead."""


def explaining(module: str) -> Callable[[str], NoReturn]:
    """Return a module's ``__getattr__``, which raises with the reason.

    Example:
        >>> explaining("my.webdataset.gopen")("reader")
        Traceback (most recent call last):
        AttributeError: module 'my.webdataset.gopen' has no 'reader', on purpose: wds.gopen(url) opens for reading
    """
    reasons = REASONS.get(module.partition(".webdataset")[2].lstrip("."), {})

    def missing(name: str) -> NoReturn:
        why = f", on purpose: {reasons[name]}" if name in reasons else ""
        hint = "" if why or name.startswith("_") else did_you_mean(name, dir(sys.modules.get(module)))
        why = why or (hint and f". {hint}")
        raise AttributeError(f"module {module!r} has no {name!r}{why}")

    return missing
