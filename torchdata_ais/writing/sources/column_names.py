"""How messages say which field a column is for."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from torchdata_ais.error_text import Way, in_commands, in_programs


def by_columns(text: str, columns: Mapping[str, str]) -> tuple[Way, Way]:
    """Return a way out by ``columns=``, as a program and as the command has it.

    Args:
        text: The clause, with ``{}`` in place of the argument.
        columns: The field of each column.

    Example:
        >>> [way.text for way in by_columns("name it with {}", {"my file": "jpg"})]
        ['name it with columns={"my file": "jpg"}', "name it with --column 'my file=jpg'"]
    """
    pairs = ", ".join(f'"{name}": "{field}"' for name, field in columns.items())
    options = " ".join(f"--column {shlex.quote(f'{name}={field}')}" for name, field in columns.items())
    return in_programs(text.format(f"columns={{{pairs}}}")), in_commands(text.format(options))
