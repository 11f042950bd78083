"""``ais_loader(start_step=n)``: the same as resuming from the state of step n."""

from __future__ import annotations

from typing import Any

import pytest

from torchdata_ais import AISSampleReader, AISSourceLister, Mixture, SampleIndex, ais_loader
from torchdata_ais.errors import UsageError
from torchdata_ais.testing import example_shards

ONE = SampleIndex.build(example_shards(counts=(30, 50, 20)))
TWO = SampleIndex.build(example_shards(counts=(17, 9)))
EPOCHS = 3


SOURCES: dict[str, Any] = {
    "index": ONE,
    "all": Mixture({ONE: 0.7, TWO: 0.3}, stop="all"),
    "never": Mixture({ONE: 2, TWO: 1}, stop="never"),
}


def keys_of(loader: Any) -> list[Any]:
    return [keys for _ in loader.epochs(EPOCHS) for (keys,) in loader]


@pytest.mark.quick(2)
@pytest.mark.parametrize("tail", ["short", "drop", "pad"])
@pytest.mark.parametrize(
    ("name", "epoch_steps"), [("index", None), ("index", 7), ("all", None), ("never", 7)]
)
@pytest.mark.parametrize("workers", [0, 2])
def test_it_equals_a_resume_from_the_state_of_that_step(
    name: str, epoch_steps: int | None, tail: Any, workers: int
) -> None:
    pipe: Any = AISSampleReader(SOURCES[name], shuffle="samples").decode().to_tuple("__key__").batched(8)
    given: Any = {"seed": 3, "tail": tail, "epoch_steps": epoch_steps, "num_workers": workers}
    batches, states = [], []
    with ais_loader(pipe, **given) as loader:
        for _ in range(EPOCHS):
            for (keys,) in loader:
                batches.append(keys)
                states.append((loader.state_dict(), loader.step, loader.samples_seen()))
    assert [step for _, step, _ in states] == list(range(1, len(batches) + 1))
    for step in range(1, len(batches), 9 if workers else 2):
        with ais_loader(pipe, start_step=step, **given) as loader:
            assert (loader.state_dict(), loader.step, loader.samples_seen()) == states[step - 1]
            assert keys_of(loader) == batches[step:]


def test_the_samples_seen_are_those_of_each_source() -> None:
    mixture = Mixture({ONE: 0.7, TWO: 0.3}, stop="all")
    pipe = AISSampleReader(mixture, shuffle="samples").map_sample(lambda sample: {"source": sample.source})
    drawn = [0, 0]
    with ais_loader(pipe.to_tuple("source").batched(8), epoch_steps=9) as loader:
        for _ in range(2):
            for (which,) in loader:
                for source in which.tolist():
                    drawn[source] += 1
                assert loader.samples_seen() == tuple(drawn)


def test_a_state_takes_its_place() -> None:
    pipe = AISSampleReader(ONE).decode().to_tuple("__key__").batched(8)
    with ais_loader(pipe, start_step=2) as loader:
        state = loader.state_dict()
    with ais_loader(pipe, start_step=9) as loader:
        loader.load_state_dict(state)
        assert loader.step == 2


@pytest.mark.parametrize("step", [-1, True, 1.5, "3", 1 << 40])
def test_a_step_that_is_none_is_an_error(step: Any) -> None:
    with pytest.raises(UsageError, match="start_step"):
        ais_loader(AISSampleReader(ONE).batched(8), start_step=step)


def test_streams_have_no_step_of_the_run() -> None:
    pipe = AISSourceLister(example_shards()).load_tar().group_samples().batched(2)
    with pytest.raises(UsageError, match=r"start_step=1 of a stream.*\.read_samples\(\)"):
        ais_loader(pipe, start_step=1)
    with ais_loader(pipe) as loader:
        with pytest.raises(UsageError, match=r"loader\.step of a stream"):
            _ = loader.step
        with pytest.raises(UsageError, match=r"loader\.samples_seen\(\) of a stream"):
            loader.samples_seen()
