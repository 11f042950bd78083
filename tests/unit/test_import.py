"""`import torchdata_ais` imports no torch, and the stages are methods of torch's pipes all the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from torchdata_ais import functional, pipes
from torchdata_ais._util.versions import NEWEST_TORCH
from torchdata_ais.pipes.base.contract import Stage

PIPE = "from torch.utils.data.datapipes.iter import IterableWrapper\n"
CHAINED = "print(type(IterableWrapper(['s.tar']).load_tar().group_samples()).__module__, end='')\n"
STAGE = "torchdata_ais.pipes.group_samples"


def printed(program: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        timeout=100,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "names",
    [
        "SampleIndex, Mixture",
        "LocalCluster, ShardWriter, TarWriter, convert, StoreOptions, Retry, ObjectCache, Sample, ObjectURL, errors",
        "Decoder, RandomResizedCrop, ensure_etl",
    ],
)
def test_what_needs_no_torch_does_not_import_it(names: str, tmp_path: Path) -> None:
    program = f"import sys, torchdata_ais\nfrom torchdata_ais import {names}\n"
    assert printed(program + "print({'torch', 'torchdata'} & set(sys.modules))", tmp_path) == "set()\n"


def test_the_package_alone_imports_little(tmp_path: Path) -> None:
    program = "import sys; before = set(sys.modules); import torchdata_ais; print(*set(sys.modules) - before)"
    found = {name.partition(".")[0] for name in printed(program, tmp_path).split()}
    assert "torchdata_ais" in found
    assert not found & {"torch", "torchdata", "numpy", "PIL", "pyarrow", "aistore", "urllib3", "msgspec"}


@pytest.mark.ci
@pytest.mark.parametrize(
    "program",
    [
        "import torchdata_ais\n" + PIPE + CHAINED,
        PIPE + "import torchdata_ais\n" + CHAINED,
        "import torchdata_ais, torch\n" + PIPE + CHAINED,
        "from torchdata_ais.pipes.base.torch_pipes import IterableWrapper\n" + CHAINED,
    ],
    ids=["before torch's pipes", "after them", "before torch", "by a package"],
)
def test_stages_are_methods_wherever_the_package_is_imported(program: str, tmp_path: Path) -> None:
    assert printed(program, tmp_path) == STAGE


@pytest.mark.ci
def test_nothing_is_left_on_the_import_path_and_torchs_module_is_as_it_was(tmp_path: Path) -> None:
    program = (
        "import sys\nbefore = list(sys.meta_path)\nimport torchdata_ais\n"
        "from torch.utils.data.datapipes import datapipe\n"
        "assert list(sys.meta_path)[-len(before):] == before\n"
        "print([finder for finder in sys.meta_path if 'torchdata_ais' in type(finder).__module__])\n"
        "print(type(datapipe.__loader__).__name__, type(datapipe.__spec__.loader).__name__)\n"
        "print(datapipe.IterDataPipe.functions['batched'].__doc__[:20])\n"
    )
    doc = str(pipes.Batcher.__doc__)[:20]
    assert printed(program, tmp_path) == f"[]\nSourceFileLoader SourceFileLoader\n{doc}\n"


@pytest.mark.ci
def test_a_name_that_another_package_took_first_stays_with_it(tmp_path: Path) -> None:
    program = (
        "import warnings\nimport torchdata_ais\nfrom torch.utils.data.datapipes.datapipe import IterDataPipe\n"
        "IterDataPipe.functions['load_tar'] = theirs = print\n"
        "with warnings.catch_warnings(record=True) as found:\n"
        "    warnings.simplefilter('always')\n    from torchdata_ais.pipes import AISFileLoader\n"
        "print(IterDataPipe.functions['load_tar'] is theirs, [str(one.message)[:30] for one in found])"
    )
    assert printed(program, tmp_path).startswith("True [\"the functional name 'load_tar'")


@pytest.mark.ci
@pytest.mark.quick(1)
@pytest.mark.parametrize("name", ["AISSourceLister", "ais_loader", "as_dataset"])
def test_a_torch_without_datapipes_is_one_error_that_names_a_torch_to_install(
    name: str, tmp_path: Path
) -> None:
    program = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r})\n"
        "import torch\nfrom helpers.hidden_modules import hide\n"
        "hide(*(f'torch.utils.data.{name}' for name in ('datapipes', 'graph', 'graph_settings')))\n"
        "from torchdata_ais import SampleIndex, ShardWriter\n"  # they need none
        f"try:\n    from torchdata_ais import {name}\nexcept ImportError as error:\n"
        "    print(type(error).__name__, error)"
    )
    shown = printed(program, tmp_path)
    assert shown.startswith(
        f"MissingLibraryError The installed torch {torch.__version__} has no DataPipes: No module named"
    )
    assert f'pip install "torch=={NEWEST_TORCH}.*"' in shown


@pytest.mark.ci
def test_the_stage_of_another_package_under_a_name_of_ours_is_refused_above_ours(tmp_path: Path) -> None:
    program = (
        "import functools, torchdata_ais\nfrom torch.utils.data.datapipes.datapipe import IterDataPipe\n"
        "class Theirs(IterDataPipe):\n    def __init__(self, source):\n        self.source = source\n"
        "IterDataPipe.functions['select'] = functools.partial(lambda cls, *source: cls(*source), Theirs)\n"
        "from torchdata_ais.pipes import Shuffler\n"
        "import sys; assert 'torchdata_ais.pipes.select' not in sys.modules\n"
        "try:\n    Shuffler(Theirs([1]), 2)\nexcept ValueError as error:\n    print(type(error).__name__, error)"
    )
    assert printed(program, tmp_path).startswith("UsageError .select() made a __main__.Theirs, not the stage")


def test_each_functional_name_maps_to_the_module_of_its_stage() -> None:
    kinds = [getattr(pipes, name) for name in pipes.__all__]
    stages = {
        kind.functional_name: kind for kind in kinds if issubclass(kind, Stage) and kind.functional_name
    }
    modules = {name: kind.__module__.rpartition(".")[2] for name, kind in stages.items()}
    assert modules == functional.STAGES
    assert list(functional.STAGES) == sorted(functional.STAGES)


OURS = "ours = lambda: {name for name in sys.modules if name.partition('.')[0] == 'torchdata_ais'}\n"


@pytest.mark.ci
def test_a_stage_imports_few_modules(tmp_path: Path) -> None:
    program = (
        f"import json, sys, torchdata_ais\n{PIPE}{OURS}alone = ours()\n"
        "pipe = IterableWrapper(['s.tar'])\npipe.select(len)\nselect = ours()\n"
        "pipe.load_tar()\nprint(json.dumps([sorted(alone), sorted(select), sorted(ours())]))"
    )
    alone, select, load_tar = (set(names) for names in json.loads(printed(program, tmp_path)))
    assert len(alone) <= 10
    assert len(select) <= 40
    assert len(load_tar) <= 90
    parts = {".".join(name.split(".")[:2]) for name in select}
    others = ("cli", "codecs", "index", "plan", "reading", "store", "tar", "workers")
    assert not parts & {f"torchdata_ais.{name}" for name in others}
    assert not {name for name in load_tar if name.startswith(("torchdata_ais.index", "torchdata_ais.plan"))}


@pytest.mark.ci
def test_a_functional_name_imports_its_module_and_none_before_its_use(tmp_path: Path) -> None:
    program = (
        f"import json, os, sys, torchdata_ais\n{PIPE}{OURS}from torchdata_ais.functional import STAGES\n"
        "pipe = IterableWrapper([1])\n"
        "for name, module in STAGES.items():\n"
        "    if (child := os.fork()) == 0:\n"
        "        assert f'torchdata_ais.pipes.{module}' not in sys.modules\n"
        "        getattr(pipe, name)\n"
        "        assert f'torchdata_ais.pipes.{module}' in sys.modules\n"
        "        assert type(pipe.functions[name]).__name__ == 'StageFactory', name\n"
        "        before = ours()\n        getattr(pipe.select(len), name)\n"
        "        print(name, flush=True)\n        os._exit(0)\n"
        "    assert os.waitpid(child, 0)[1] == 0, name\n"
        "print(len(ours()))\n"
    )
    *names, count = printed(program, tmp_path).split()
    assert names == list(functional.STAGES)
    assert int(count) <= 10


@pytest.mark.ci
def test_dir_of_a_pipe_lists_all_stages_before_and_after_their_import(tmp_path: Path) -> None:
    program = (
        f"import sys, torchdata_ais\n{PIPE}{OURS}from torchdata_ais.functional import STAGES\n"
        "pipe = IterableWrapper([1])\nbefore = len(ours())\n"
        "print(set(STAGES) <= set(dir(pipe)), len(ours()) == before)\n"
        "print(set(STAGES) <= set(dir(pipe.select(len))))\n"
        "from torchdata_ais.pipes import *\nprint(set(STAGES) <= set(dir(pipe)) & set(dir(Selector([], len))))\n"
    )
    assert printed(program, tmp_path).split() == ["True"] * 4


@pytest.mark.ci
def test_a_pickled_pipe_imports_the_modules_of_its_stages(tmp_path: Path) -> None:
    chain = "IterableWrapper([1, 2]).select(bool).batched(2)"
    made = printed(f"import pickle, torchdata_ais\n{PIPE}print(pickle.dumps({chain}).hex())", tmp_path)
    program = f"import pickle, sys\npipe = pickle.loads(bytes.fromhex({made.strip()!r}))\nprint(list(pipe))"
    assert printed(program, tmp_path) == "[tensor([1, 2])]\n"


def test_packages_are_there_as_attributes(tmp_path: Path) -> None:
    program = (
        "import torchdata_ais as tda\nprint(tda.urls.__name__, hasattr(tda, 'nothing'))\n"
        "try:\n    tda.SampleIndx\nexcept AttributeError as error:\n    print(error)"
    )
    shown = printed(program, tmp_path)
    assert shown.startswith("torchdata_ais.urls False\n")
    assert "Did you mean SampleIndex" in shown
