"""Files on disk that are whole or not there: whoever looks meanwhile, or after a kill, finds the one of before."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def whole_file(path: Path, *, on_disk: bool = False) -> Iterator[BinaryIO]:
    """Give a file to write; it gets its name at the end of the block, and is gone if that raises.

    Args:
        path: The name; what has it already is replaced.
        on_disk: Whether it is to survive a power cut, too.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "a.json")
        >>> with whole_file(path) as file:
        ...     _ = file.write(b"{}")
        ...     path.exists()
        False
        >>> path.read_bytes()
        b'{}'
    """
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with unfinished.open("x+b") as file:
            yield file
            if on_disk:
                file.flush()
                os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException as error:
        unfinished.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename == str(unfinished):  # a name nobody has heard of
            error.filename, error.filename2 = str(path), None
        raise
