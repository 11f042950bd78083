"""``python -m torchdata_ais``: the command."""

from torchdata_ais.cli import main

if __name__ == "__main__":
    main()
