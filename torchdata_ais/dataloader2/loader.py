"""torchdata's `DataLoader2` with checked arguments and states."""

from __future__ import annotations

from typing import Any

from typing_extensions import Self

from torchdata_ais._util.arguments import checked
from torchdata_ais.dataloader2 import torchdata_names
from torchdata_ais.dataloader2.own.loader import NO_STATE, check_trust, state_error
from torchdata_ais.errors import UsageError
from torchdata_ais.pipes.base.pickle_check import explained


class DataLoader2(torchdata_names.DataLoader2[Any]):  # type: ignore[misc]
    """torchdata's own.

    Raises:
        UsageError: Arguments that it does not take. A function in the pipe that cannot be pickled: DataLoader2 makes a
            copy that way.
    """

    @checked
    def __init__(
        self, datapipe: object, datapipe_adapter_fn: object = None, reading_service: object = None
    ) -> None:
        if any(
            isinstance(one, torchdata_names.ReadingServiceInterface)
            for one in (datapipe, datapipe_adapter_fn)
        ):
            raise UsageError.at(
                "DataLoader2 was given a reading service in another place than its own",
                todo="write DataLoader2(pipe, reading_service=service)",
            )
        with explained():
            super().__init__(datapipe, datapipe_adapter_fn, reading_service)

    @classmethod
    def from_state(cls, state: dict[str, Any], reading_service: object, *, trust: bool = False) -> Self:
        """Return a loader from the pipe and the seeds of `state`.

        See `load_state_dict`.
        """
        check_trust(trust)
        loader = cls(None, reading_service=reading_service)
        loader.load_state_dict(state, trust=trust)
        return loader

    def load_state_dict(self, state_dict: dict[str, Any], *, trust: bool = False) -> None:
        """Use the pipe and the seeds of a state from the first epoch on.

        Args:
            state_dict: A state that `state_dict` returned. Unlike torchdata, this loader refuses it by default.
            trust: Whether to unpickle the state, which runs the code that it names.

        Raises:
            StateError: `trust` is not True, or `state_dict` is not a state of a `DataLoader2`.
        """
        check_trust(trust)
        if torchdata_names.OWN:
            super().load_state_dict(state_dict, trust=trust)
            return
        before = self.datapipe
        try:
            super().load_state_dict(state_dict)
        except (*NO_STATE, AssertionError, NotImplementedError) as error:
            if self.datapipe is not before and self.datapipe_adapter_fns is not None:
                raise  # may come from an adapter
            raise state_error(error) from error
