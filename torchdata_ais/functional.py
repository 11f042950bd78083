"""Stages as methods of torch's pipes, registered without an import.

They serve programs that have imported neither torch nor the stages yet.

Torch's import takes seconds, and much of this package needs none of it: shards are written, indexed and read without.
So `register` imports nothing. It adds the names of the stages to torch's pipes, at once or when a program imports
those pipes. The first use of a stage imports all of them.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

NAMES = (
    "associate", "batched", "buckets", "decode", "extract_keys", "group_samples", "info", "list_ais", "listed",
    "load_objects", "load_tar", "map_dict", "map_sample", "map_tuple", "mix_random", "mix_round_robin",
    "non_empty", "pack", "pipe_through", "read_samples", "rename", "rename_keys", "repeated", "resampled",
    "rsample", "select", "shuffled", "single_node_only", "slice_samples", "split_by_node", "split_by_worker",
    "to_tuple", "unbatched", "unlisted", "with_epoch", "with_length", "xdecode",
)  # fmt: skip
"""Functional names of the stages."""

_PIPES = "torch.utils.data.datapipes.datapipe"
"""Module in which torch's pipes look for names."""


def register() -> None:
    """Make the stages methods of torch's pipes: now, or on their import."""
    module = sys.modules.get(_PIPES)
    if module is not None:
        _name_stages(module)
    else:
        sys.meta_path.insert(0, _AtImport())


def _name_stages(module: ModuleType) -> None:
    functions: dict[str, Any] = module.IterDataPipe.functions
    for name in NAMES:
        functions.setdefault(name, _Stage(functions, name))


class _Stage:
    # Replaced by the maker of a stage when the stages are imported. Its documentation is that
    # of the stage: torch copies it into the method.

    def __init__(self, functions: dict[str, Any], name: str) -> None:
        self._functions = functions
        self._name = name

    def _maker(self) -> Any:
        importlib.import_module("torchdata_ais.pipes")
        return self._functions[self._name]

    @property
    def __doc__(self) -> str | None:  # type: ignore[override]
        doc: str | None = self._maker().__doc__
        return doc

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self._maker())

    def __call__(self, source: Any, /, *arguments: Any, **named: Any) -> Any:
        return self._maker()(source, *arguments, **named)


class _AtImport(MetaPathFinder):
    """Waits for one module, and is gone when it is imported."""

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:  # noqa: ARG002
        if name != _PIPES:
            return None
        with contextlib.suppress(ValueError):  # another thread was faster
            sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_name(module: ModuleType) -> None:
                load(module)
                _name_stages(module)

            spec.loader.exec_module = load_and_name  # type: ignore[method-assign]
        return spec
