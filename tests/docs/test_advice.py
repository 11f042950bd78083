"""Each option, stage, command and package that a message or a report of the package names exists."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
import torch
import torch.utils.data
import typer.main
from test_messages import PACKAGE, sources, text_of

import torchdata_ais
import torchdata_ais.dataloader2
import torchdata_ais.store
from torchdata_ais import local
from torchdata_ais._util import arguments
from torchdata_ais.cli import app
from torchdata_ais.pipes.base.pipe import IterDataPipe

CHANGEABLE = {"map_dict", "rename", "rename_keys"}
"""Stages whose options are names of fields."""
OF_OTHERS = {
    "bucket.objects": {"obj_template"},  # of the AIStore SDK
    "fullsync": {"timeout"},
    "DataLoader2": {"reading_service"},
}
PACKAGES = {"dill", "google-crc32c", "simplejpeg", "backports.zstd", "ray", "torch", "aistore"}
"""Looked up on the package index by hand."""


def texts() -> Iterator[tuple[str, str]]:
    """Yield (place, text) of all strings in the package except docstrings."""
    for path, tree in sources():
        if {"webdataset", "examples"} & set(path.parts):
            continue
        passed = {
            id(body[0].value)
            for node in ast.walk(tree)
            if isinstance(body := getattr(node, "body", None), list)
            and body
            and isinstance(body[0], ast.Expr)
        }
        for node in ast.walk(tree):
            if id(node) not in passed and isinstance(node, ast.JoinedStr | ast.Constant):
                passed.update(map(id, ast.walk(node)))
                yield f"{path.relative_to(PACKAGE)}:{node.lineno}", text_of(node)


@cache
def all_texts() -> list[tuple[str, str]]:
    return list(texts())


@cache
def found(pattern: str) -> dict[tuple[str, ...], str]:
    """Return the groups of all matches, each with its first place.

    Loops, not test cases: each process that collects tests would parse the whole package.
    """
    cases: dict[tuple[str, ...], str] = {}
    for place, text in all_texts():
        for match in re.finditer(pattern, text):
            cases.setdefault(match.groups(), place)
    return cases


def functions(name: str) -> list[Callable[..., Any]]:
    """Return what may be called by a name in a message."""
    last = name.rpartition(".")[2]
    if last in IterDataPipe.functions:
        return [IterDataPipe.functions[last]]
    owners: list[Any] = [
        torchdata_ais,
        torchdata_ais.dataloader2,
        torchdata_ais.store,
        local,
        torch.utils.data,
    ]
    owners += [torchdata_ais.SampleIndex, torchdata_ais.ais_loader]
    made = [getattr(owner, last) for owner in owners if hasattr(owner, last)]
    return [one for one in made if callable(one)]


def options(function: Callable[..., Any]) -> set[str]:
    return set(inspect.signature(function).parameters)


CALLS = r"([\w.]*\w)\(((?:[^()]|\([^()]*\))*=(?:[^()]|\([^()]*\))*)\)"
COMMANDS = r"torchdata-ais ([a-z][\w-]*)((?: --[\w-]+)*)"
STAGES = r"(?<![\w.)\]])\.([a-z_]{4,})\("
INSTALLED = r"pip install (?:-U )?\"?([a-z][\w.-]*\w)"


def test_enough_is_found() -> None:
    assert [len(found(one)) > least for one, least in ((CALLS, 40), (COMMANDS, 12), (STAGES, 25))] == [
        True
    ] * 3
    assert found(INSTALLED)


def test_the_options_of_calls_exist() -> None:
    checked = 0
    for (name, given), place in found(CALLS).items():
        last = name.rpartition(".")[2]
        named = set(re.findall(r"(?<![\w.])([a-z_]+)=(?!=)", re.sub(r"\w+\([^()]*\)", "", given)))
        if last in CHANGEABLE or not named:
            continue
        if name in OF_OTHERS:
            assert named <= OF_OTHERS[name], (place, name, named)
            continue
        makers = functions(name)  # none: it is not called by users of the package
        assert not makers or any(named <= options(maker) for maker in makers), (place, name, named)
        checked += bool(makers)
    assert checked > 30


def test_the_commands_and_their_options_exist() -> None:
    group: Any = typer.main.get_command(app)
    for (name, given), place in found(COMMANDS).items():
        assert name in group.commands, (place, name)
        command = group.commands[name]
        known = {option for one in command.params for option in [*one.opts, *one.secondary_opts]}
        assert set(given.split()) <= known | {"--help", "--debug"}, (place, name, given)


def test_the_stages_exist() -> None:
    methods = (torchdata_ais.SampleIndex, torchdata_ais.ais_loader, local.LocalCluster, torch.Tensor)
    for (name,), place in found(STAGES).items():
        assert name in IterDataPipe.functions or any(hasattr(one, name) for one in methods), (place, name)


def test_the_packages_to_install_are_known() -> None:
    assert {package for (package,) in found(INSTALLED)} <= PACKAGES


RENAMED = {
    option: match.group(1)
    for option, told in arguments.ELSEWHERE.items()
    if (match := re.match(r"(?:it is|they are) called (\w+)", told))
}


@pytest.mark.parametrize("option", RENAMED)
def test_the_word_for_an_option_of_other_loaders_is_an_option(option: str) -> None:
    stages = [IterDataPipe.functions[name] for name in ("list_ais", "decode", "mix_random")]
    makers = [torchdata_ais.ais_loader, *stages]
    assert any(RENAMED[option] in options(maker) for maker in makers)
    assert not any(option in options(maker) for maker in makers)
