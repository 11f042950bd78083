"""`shard_etl`: make the SDK's server class of a function, to be pickled."""

from __future__ import annotations

import functools
import inspect
import sys
import sysconfig
import textwrap
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import xxhash

from torchdata_ais.codecs import MAX_PIXELS, Crop, Decoder
from torchdata_ais.codecs.handlers import MAX_GZ_BYTES, Handler
from torchdata_ais.codecs.image import SixteenBit
from torchdata_ais.codecs.resize import Size
from torchdata_ais.errors import UsageError
from torchdata_ais.jobs.etl.transform import ShardTransform, Specs, decoder_specs


def shard_etl(
    function: Callable[..., object] | None = None,
    *,
    decode: Specs | None = None,
    quality: int = 100,
    keep_meta: bool = False,
    only: Iterable[str] | str | None = None,
    partial: bool = False,
    pre: Handler | Iterable[Handler] | None = None,
    post: Handler | Iterable[Handler] | None = None,
    size: int | Size | None = None,
    shorter: int | None = None,
    allow_pickle: bool = False,
    sixteen_bit: SixteenBit = "clip",
    exif: bool = False,
    max_gz_bytes: int = MAX_GZ_BYTES,
    max_pixels: int = MAX_PIXELS,
    crop: Crop | None = None,
    random_resized_crop: int | Size | None = None,
    scale: tuple[float, float] | None = None,
    ratio: tuple[float, float] | None = None,
    flip: float | None = None,
    center_crop: int | Size | None = None,
    resize_crop: tuple[int, int | Size] | None = None,
    frames: int | None = None,
    seconds: tuple[float, float] | None = None,
    every: int = 1,
) -> Any:
    """Return an ETL server class that applies a function to each sample.

    The class is one of the AIStore SDK. `shard_etl` is a decorator, or a function for functions that are needed as
    they are, too. The class goes to `ensure_etl`, or straight to the SDK:
    ``client.etl(name).init_class(...)(server)``. ``server.shard_transform`` can be tried without a cluster.

    Args:
        function: The function.
        decode: Decoding of the fields before, as in ``.decode(...)``: ``"pil"``, ``"torchrgb8"``, ...; None leaves
            them bytes. Values other than bytes are encoded by the endings of their fields afterwards.
        quality: For JPEG and WebP, 1 to 100.
        keep_meta: Whether fields that begin with ``_`` are stored, too.
        only: As in `torchdata_ais.Decoder`.
        partial: As in `torchdata_ais.Decoder`.
        pre: As in `torchdata_ais.Decoder`.
        post: As in `torchdata_ais.Decoder`.
        size: As in `torchdata_ais.Decoder`.
        shorter: As in `torchdata_ais.Decoder`.
        allow_pickle: As in `torchdata_ais.Decoder`.
        sixteen_bit: As in `torchdata_ais.Decoder`.
        exif: As in `torchdata_ais.Decoder`.
        max_gz_bytes: As in `torchdata_ais.Decoder`.
        max_pixels: As in `torchdata_ais.Decoder`.
        crop: As in `torchdata_ais.Decoder`.
        random_resized_crop: As in `torchdata_ais.Decoder`.
        scale: As in `torchdata_ais.Decoder`.
        ratio: As in `torchdata_ais.Decoder`.
        flip: As in `torchdata_ais.Decoder`.
        center_crop: As in `torchdata_ais.Decoder`.
        resize_crop: As in `torchdata_ais.Decoder`.
        frames: As in `torchdata_ais.Decoder`.
        seconds: As in `torchdata_ais.Decoder`.
        every: As in `torchdata_ais.Decoder`.

    Raises:
        UsageError: Not a function, or one with other parameters.

    Example:
        >>> @shard_etl(decode="pil")
        ... def shout(sample):
        ...     return {**sample, "txt": sample["txt"].upper()}
        >>> shout.__name__, shout.__mro__[1].__name__
        ('shout', 'ShardServer')
    """
    given = locals()  # the parameters of this function, those of `Decoder` among them
    parameters = inspect.signature(Decoder).parameters.values()
    decoder = {
        one.name: given[one.name]
        for one in parameters
        if one.name in given and given[one.name] != one.default
    }
    packer = {"quality": quality, "keep_meta": keep_meta}
    make = functools.partial(_server, decode=decode, decoder=decoder, packer=packer)
    return make if function is None else make(function)


def _server(
    function: Callable[..., object],
    decode: Specs | None,
    decoder: dict[str, Any],
    packer: dict[str, Any],
) -> type[object]:
    from torchdata_ais.jobs.etl.server import ShardServer

    if not callable(function):
        raise UsageError.at(
            f"shard_etl() was given a {type(function).__name__}", todo="pass a function of a sample"
        )
    _check_parameters(function)
    if decode is not None:
        Decoder(*decoder_specs(decode), **decoder)  # complain now, not on the cluster
    elif decoder:
        raise UsageError.at(
            f"{'=, '.join(decoder)}= without decode=", todo='pass decode="pil" or the like, too'
        )
    transform = _Travelling(function, decode, decoder, packer)

    class Server(ShardServer):
        shard_transform = transform

    Server.__name__ = getattr(function, "__name__", "Server")
    Server.__doc__ = function.__doc__
    return Server


class _Travelling(ShardTransform):
    """A transform that is pickled by value, with the user's own modules."""

    def __reduce__(self) -> tuple[object, ...]:
        import cloudpickle  # type: ignore[import-untyped, unused-ignore]

        with ExitStack() as stack:
            module = sys.modules.get(getattr(self.function, "__module__", "") or "")
            if module is not None and _is_own(module):
                cloudpickle.register_pickle_by_value(module)
                stack.callback(cloudpickle.unregister_pickle_by_value, module)
            payload = cloudpickle.dumps((self.function, self.decode, dict(self.decoder), dict(self.packer)))
        return _arrived, (payload,)


def _arrived(payload: bytes) -> ShardTransform:
    import cloudpickle

    # Only ever called while the cluster unpickles the class around it, which is as much code.
    return ShardTransform(*cloudpickle.loads(payload))


def _is_own(module: ModuleType) -> bool:
    """Return whether a module is a file of the user's, which no pod has."""
    file = getattr(module, "__file__", None)
    if module.__name__ == "__main__" or not file or module.__name__.split(".")[0] == "torchdata_ais":
        return False
    path = Path(file).resolve()
    installed = {Path(place).resolve() for place in sysconfig.get_paths().values()}
    return not any(path.is_relative_to(place) for place in installed)


def _check_parameters(function: Callable[..., object]) -> None:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # of functions written in C
        return
    needed = [one for one in parameters if one.default is one.empty and one.name != "args"]
    needed = [one for one in needed if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)]
    if not parameters or len(needed) > 1:
        raise UsageError.at(
            f"the function takes ({', '.join(one.name for one in parameters)})",
            todo="write f(sample), or f(sample, args) with that name",
        )


def fingerprint(server: Any) -> str:
    """Return a hash of a server class: equal for equal source and settings.

    The code of called functions is not in it.
    """
    transform = getattr(server, "shard_transform", None)
    subject = server if transform is None else transform.function
    code = getattr(subject, "__code__", None)
    try:
        # Code of eval() and exec() has no source, but Python 3.13 finds that of ``python -c`` under the same name.
        text = _code_text(code) if code and code.co_filename == "<string>" else ""
        text = text or textwrap.dedent(inspect.getsource(subject))
    except (OSError, TypeError):
        text = repr(subject) if code is None else _code_text(code)
    if transform is not None:
        text += repr((transform.decode, sorted(transform.decoder.items()), sorted(transform.packer.items())))
    return xxhash.xxh64_hexdigest(text.encode())


def _code_text(code: CodeType) -> str:
    """Return a text for a function without source, equal in every process."""
    constants = [
        _code_text(one) if isinstance(one, CodeType)
        else repr(sorted(map(repr, one))) if isinstance(one, frozenset)
        else repr(one)
        for one in code.co_consts
    ]  # fmt: skip
    return f"{code.co_code.hex()} {code.co_names} {code.co_varnames} {constants}"
