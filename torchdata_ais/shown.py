"""What a value is, in a few characters: for the repr of a sample, and for errors of functions that were given it."""

from __future__ import annotations

from typing import Any

_MOST = 4
_TEXT = 40


def bytes_text(count: float) -> str:
    """Return a number of bytes as people read it.

    Example:
        >>> bytes_text(812), bytes_text(36_500), bytes_text(2.5e9), bytes_text(7.2e15)
        ('812 B', '36.5 kB', '2.5 GB', '7200.0 TB')
    """
    if count < 1000:
        return f"{count:.0f} B"
    units = ["kB", "MB", "GB", "TB"]
    while (count := count / 1000) >= 1000 and len(units) > 1:
        del units[0]
    return f"{count:.1f} {units[0]}"


def count_text(count: int, what: str) -> str:
    """Return how many of something.

    Example:
        >>> count_text(1, "shard"), count_text(2, "shard")
        ('1 shard', '2 shards')
    """
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def span_text(numbers: tuple[int, int]) -> str:
    """Return the fewest and the most of something.

    Example:
        >>> span_text((3, 3)), span_text((3, 4))
        ('3', '3 to 4')
    """
    fewest, most = numbers
    return f"{most}" if fewest == most else f"{fewest} to {most}"


def value_text(value: Any) -> str:
    r"""Return what kind of value this is, and how large; short ones as they are.

    Example:
        >>> import numpy as np
        >>> value_text(np.zeros((3, 8, 8), np.uint8)), value_text((1, "cat")), value_text(b"\xff\xd8" + bytes(36_498))
        ('ndarray uint8 3 x 8 x 8', "(1, 'cat')", "36.5 kB b'\\xff\\xd8\\x00\\x00'...")
    """
    if isinstance(value, (bytes, bytearray, memoryview)):
        head = bytes(value[:4])
        return repr(bytes(value)) if len(value) <= 16 else f"{bytes_text(len(value))} {head!r}..."
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple) and hasattr(value, "dtype"):
        size = " x ".join(map(str, shape)) or "scalar"
        return f"{type(value).__name__} {str(value.dtype).removeprefix('torch.')} {size}"
    if hasattr(value, "mode") and isinstance(getattr(value, "size", None), tuple):
        return f"PIL image {value.mode} {' x '.join(map(str, value.size))}"
    if type(value) in (tuple, list):
        shown = [value_text(one) for one in value[:_MOST]]
        more = [f"... {len(value)}"] if len(value) > _MOST else []
        text = ", ".join(shown + more)
        return f"[{text}]" if isinstance(value, list) else f"({text})"
    if type(value) is dict:
        shown = [f"{name!r}: {value_text(one)}" for name, one in list(value.items())[:_MOST]]
        more = [f"... {len(value)}"] if len(value) > _MOST else []
        return f"{{{', '.join(shown + more)}}}"
    if isinstance(value, (int, float, str)) or value is None:
        text = repr(value)
        return text if len(text) <= _TEXT else f"{text[: _TEXT - 3]}...{text[0]}"
    return f"a {type(value).__name__}"
