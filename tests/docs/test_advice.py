"""Each option, stage, command and package that a message or a report of the package names exists."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.utils.data
import typer.main
from test_messages import PACKAGE, sources, text_of
from typing_extensions import is_typeddict

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


TEXTS = list(texts())


def found(pattern: str) -> list[Any]:
    """Return the places and groups of all matches, a test case each."""
    cases: dict[Any, str] = {}
    for place, text in TEXTS:
        for match in re.finditer(pattern, text):
            cases.setdefault(match.groups(), place)
    return [
        pytest.param(*groups, id=f"{place}-{'-'.join(map(str, groups))}"[:90])
        for groups, place in cases.items()
    ]


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
    names: set[str] = set()
    for one in inspect.signature(function).parameters.values():
        names.add(one.name)
        if one.kind is one.VAR_KEYWORD:
            kind = str(one.annotation).removeprefix("Unpack[").removesuffix("]")
            known = getattr(function, "__globals__", {}).get(kind)
            names |= set(known.__annotations__) if is_typeddict(known) else set()
    return names


CALLS = found(r"([\w.]*\w)\(((?:[^()]|\([^()]*\))*=(?:[^()]|\([^()]*\))*)\)")


def test_enough_is_found() -> None:
    assert len(CALLS) > 40
    assert len(COMMANDS) > 12
    assert len(STAGES) > 25


@pytest.mark.parametrize(("name", "given"), CALLS)
def test_an_option_of_a_call_exists(name: str, given: str) -> None:
    last = name.rpartition(".")[2]
    named = set(re.findall(r"(?<![\w.])([a-z_]+)=(?!=)", re.sub(r"\w+\([^()]*\)", "", given)))
    if last in CHANGEABLE or not named:
        return
    if name in OF_OTHERS:
        assert named <= OF_OTHERS[name]
        return
    makers = functions(name)
    if not makers:
        pytest.skip(f"{name} is not called by users of the package")
    assert any(named <= options(maker) for maker in makers), (name, named)


COMMANDS = found(r"torchdata-ais ([a-z][\w-]*)((?: --[\w-]+)*)")


@pytest.mark.parametrize(("name", "given"), COMMANDS)
def test_a_command_and_its_options_exist(name: str, given: str) -> None:
    group: Any = typer.main.get_command(app)
    command = group.commands[name]
    known = {option for one in command.params for option in [*one.opts, *one.secondary_opts]}
    assert set(given.split()) <= known | {"--help", "--debug"}


STAGES = found(r"(?<![\w.)\]])\.([a-z_]{4,})\(")


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_exists(name: str) -> None:
    methods = (torchdata_ais.SampleIndex, torchdata_ais.ais_loader, local.LocalCluster, torch.Tensor)
    assert name in IterDataPipe.functions or any(hasattr(one, name) for one in methods)


@pytest.mark.parametrize("package", found(r"pip install (?:-U )?\"?([a-z][\w.-]*\w)"))
def test_a_package_to_install_is_known(package: str) -> None:
    assert package in PACKAGES


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
