"""What a source of items raises when it has none now."""


class NotAvailable(Exception):  # noqa: N818 - torchdata's names
    """There is no item yet: ask again."""


class InvalidStateResetRequired(Exception):  # noqa: N818
    """There will be no item until the source has begun anew."""


class TerminateRequired(Exception):  # noqa: N818
    """There will be no item any more. `Prefetcher` ends its iteration."""
