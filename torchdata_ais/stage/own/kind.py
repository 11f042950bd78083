"""What pipes of both kinds have in common: they are found in the attributes of others."""


class AnyPipe:
    """A pipe, whether it is iterated or asked by index."""
