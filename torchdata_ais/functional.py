"""Stages as methods of torch's pipes, registered without an import.

They serve programs that have imported neither torch nor the stages yet.

Torch's import takes seconds, and much of this package needs none of it: shards are written, indexed and read without.
So `register` imports nothing. It puts the names where torch's pipes look for them, at once or when a program imports
those pipes. The first use of a name imports the module of that stage, and no other stage that it does not need.
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

_MODULES = {
    "batched": "batched listed unbatched unlisted",
    "decode": "decode xdecode",
    "fields": "extract_keys rename rename_keys to_tuple",
    "group_samples": "group_samples",
    "list_ais": "list_ais",
    "load_objects": "load_objects",
    "load_tar": "load_tar",
    "mapped": "associate map_dict map_sample map_tuple",
    "mixed": "mix_random mix_round_robin",
    "packed": "buckets pack",
    "read_samples": "read_samples",
    "repeated": "repeated with_epoch",
    "resampled": "resampled split_by_node split_by_worker",
    "select": "rsample select slice_samples",
    "shuffled": "shuffled",
    "unchanged": "info non_empty pipe_through single_node_only with_length",
}
STAGES = dict(sorted((name, module) for module, names in _MODULES.items() for name in names.split()))
"""Functional name -> the module of `torchdata_ais.pipes` that registers it."""

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
    for name in STAGES:
        functions.setdefault(name, LateStage(functions, name))


class LateStage:
    """Substitute for the maker of a stage whose module is not imported yet.

    The import replaces it by the maker. Its documentation is that of the stage: torch copies it into the method.

    Args:
        functions: The functional names of torch's pipes.
        name: The functional name.
    """

    def __init__(self, functions: dict[str, Any], name: str) -> None:
        self._functions = functions
        self._name = name

    def maker(self) -> Any:
        """Import the module of the stage, and return the maker."""
        importlib.import_module(f"torchdata_ais.pipes.{STAGES[self._name]}")
        return self._functions[self._name]

    @property
    def __doc__(self) -> str | None:  # type: ignore[override]
        """Return the documentation of the stage."""
        doc: str | None = self.maker().__doc__
        return doc

    @property
    def __signature__(self) -> inspect.Signature:
        """Return the signature of the stage."""
        return inspect.signature(self.maker())

    def __call__(self, source: object, /, *arguments: object, **named: object) -> Any:
        """Import the module of the stage, and make the stage."""
        return self.maker()(source, *arguments, **named)


class _AtImport(MetaPathFinder):
    """Finder that names the stages when torch's pipes are imported, once."""

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
