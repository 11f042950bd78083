"""`shard_etl`: make the SDK's server class of a function, to be pickled."""

from __future__ import annotations

import inspect
import sys
import sysconfig
import textwrap
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, overload

import xxhash

from torchdata_ais.errors import UsageError
from torchdata_ais.jobs.etl.transform import ShardTransform


@overload
def shard_etl(function: Callable[..., Any]) -> type[Any]: ...
@overload
def shard_etl(
    *, decode: str | Sequence[Any] | None = None, quality: int = 100, keep_meta: bool = False, **decoder: Any
) -> Callable[[Callable[..., Any]], type[Any]]: ...


def shard_etl(
    function: Callable[..., Any] | None = None,
    *,
    decode: str | Sequence[Any] | None = None,
    quality: int = 100,
    keep_meta: bool = False,
    **decoder: Any,
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
        **decoder: Further arguments of ``.decode(...)``: ``size=224``, ``only="jpg"``, ...

    Raises:
        UsageError: Not a function, or one with other parameters.

    Example:
        >>> @shard_etl(decode="pil")
        ... def shout(sample):
        ...     return {**sample, "txt": sample["txt"].upper()}
        >>> shout.__name__, shout.__mro__[1].__name__
        ('shout', 'ShardServer')
    """
    if function is None:
        return partial(shard_etl, decode=decode, quality=quality, keep_meta=keep_meta, **decoder)
    from torchdata_ais.codecs import Decoder
    from torchdata_ais.jobs.etl.server import ShardServer
    from torchdata_ais.jobs.etl.transform import decoder_specs

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
    transform = _Travelling(function, decode, decoder, {"quality": quality, "keep_meta": keep_meta})

    class Server(ShardServer):
        shard_transform = transform

    Server.__name__ = getattr(function, "__name__", "Server")
    Server.__doc__ = function.__doc__
    return Server


class _Travelling(ShardTransform):
    """A transform whose function is pickled by value.

    So is the code of the user's own modules.
    """

    def __reduce__(self) -> tuple[Any, ...]:
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
    """Report whether a module is a file of the user's own.

    It is not installed, not Python's, not ours; no pod has it.
    """
    file = getattr(module, "__file__", None)
    if module.__name__ == "__main__" or not file or module.__name__.split(".")[0] == "torchdata_ais":
        return False
    path = Path(file).resolve()
    installed = {Path(place).resolve() for place in sysconfig.get_paths().values()}
    return not any(path.is_relative_to(place) for place in installed)


def _check_parameters(function: Callable[..., Any]) -> None:
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
    """Return a text for the code of a function without source.

    It is the same in every process.
    """
    constants = [
        _code_text(one) if isinstance(one, CodeType)
        else repr(sorted(map(repr, one))) if isinstance(one, frozenset)
        else repr(one)
        for one in code.co_consts
    ]  # fmt: skip
    return f"{code.co_code.hex()} {code.co_names} {code.co_varnames} {constants}"
