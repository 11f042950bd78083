"""Durations in words."""

from __future__ import annotations


def time_text(seconds: float) -> str:
    """Return a duration for reading.

    Example:
        >>> time_text(0.0123), time_text(12.3), time_text(0.00002)
        ('12 ms', '12.3 s', '0.02 ms')
    """
    if seconds >= 1e9:
        return f"{seconds:.1g} s"
    if seconds >= 1:
        return f"{seconds:.1f} s"
    milliseconds = 1000 * seconds
    return f"{milliseconds:.0f} ms" if milliseconds >= 10 else f"{milliseconds:.2g} ms"
