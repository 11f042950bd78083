"""Worker processes: loop, channels and protocol.

This package does not import torchdata.
::

    pool          the worker processes of one loader: start, reset, take items, pause, stop, query
    process       one of them in the main process: its messages, its end, start arguments (`ProcessConfig`, `PipePart`)
    producer      the loop of a worker: iterate the pipe, send items in turn to consumers with credit
    heartbeat     detection of stopped processes and of items that take too long
    channel       messages over a socket pair, never blocking without watching the other side
    pickling      objects <-> bytes and file descriptors; exceptions as data
    memory        shared memory for tensors and large buffers, used again after the receiver

Flow control is by credit: a process may send as many items as it has credit for, and gets new credit as items are
taken. That bounds the items under way, and needs no thread in the main process.

A process that waits for an item sleeps in the kernel until it comes or a process ends, and checks twice a second that
the others are alive. Polling, with growing pauses of at most 50 ms, remains where nothing can wake the process: the
store of torch.distributed and its collectives, and a process that is to end.
"""
