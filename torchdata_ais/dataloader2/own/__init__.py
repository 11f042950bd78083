"""DataLoader2 with torchdata's interface, for a torchdata without one.

torchdata 0.10 dropped it. `torchdata_ais.dataloader2` takes torchdata's classes where there are some, and these
elsewhere: with the same seeds they give the same samples in the same order.
"""
