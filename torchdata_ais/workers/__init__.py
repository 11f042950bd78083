"""The machinery under `MultiProcessingReadingService`: processes, channels between them, and who speaks when.

::

    codec     objects <-> bytes and file descriptors; tensors and large buffers in shared memory
    memory    that memory, used again when the receiver has done with it
    channel   messages over a socket pair, never blocking without watching the other side
    failure   an exception as data: caught in one process, raised again in another
    graph     which part of a pipe runs where; sharding and its one rule
    worker    the process that runs a replica of the pipe, and the one that dispatches
    source    the pipes that stand where the graph was cut and read the other side's items
    pool      the main process's hold on its processes: start, receive, pause, stop
    ranks     what the ranks of a distributed job tell each other, over a store of torch.distributed
    fullsync  torchdata's fullsync, made to notice that a rank is gone

Flow control is by credit: a process may send as many items as it was given credit for, and credit is given back as
items are taken. That bounds what is under way, and needs no thread in the main process.

Who waits for an item sleeps in the kernel until it comes or a process ends, and looks twice a second whether those it
waits for give signs of life. Only what cannot wake anybody is asked again and again, with growing pauses of at most
50 ms: the store of torch.distributed and its collectives, and a process that is to end.
"""
