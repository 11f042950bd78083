"""torchdata's modules over our own classes, for the tests of torchdata: see run_torchdata.py --own."""
