"""Worker processes: what runs in them, the channels between them, and who speaks when. No torchdata in here.

::

    pool          the main process's hold on its processes: start, reset, take items, pause, stop
    yielding_lock what is held while items are taken, and given up to another thread that wants it
    telling       what workers tell beside their items: counts, records, what they are doing
    process       one of them as the main process sees it: what it sent, whether it lives, how it ended
    job           what a process is started with; `Part` is what a loader brings: the pipe, and how it begins an epoch
    worker        the process itself, from its start to its end
    signals       what the main process handles stays with it
    producer      its loop: iterate the pipe, send items in turn
    outlet        a consumer of them, as far as there is credit
    receivers     the pipes that stand where the graph was cut and give the items of the other side
    hooks         what a pipe may have to hear of epochs, and to send something along with its items
    channel       messages over a socket pair, never blocking without watching the other side
    pickling      objects <-> bytes and file descriptors; tensors and large buffers in shared memory
    memory        that memory, used again when the receiver has done with it
    failure       an exception as data: caught in one process, raised again in another
    counts        what a worker tells of its pipe's statistics
    pulse, stall  whether a process still runs; whether an item takes too long, and in which stage
    ordered_pool  a function in several processes, results in order: for writing and indexing, without torch

Flow control is by credit: a process may send as many items as it was given credit for, and credit is given back as
items are taken. That bounds what is under way, and needs no thread in the main process.

Who waits for an item sleeps in the kernel until it comes or a process ends, and looks twice a second whether those it
waits for give signs of life. Only what cannot wake anybody is asked again and again, with growing pauses of at most
50 ms: the store of torch.distributed and its collectives, and a process that is to end.
"""
