"""One measurement in a process of its own: run one pipeline over one epoch, print what it took as JSON.

Run by `run.py`; the job is the first argument. Time begins at ``iter()`` and ends with the last batch; processor
time is that of the process and of all it started, from ``iter()`` to the end of the last worker.
"""

import gc
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor


def cpu_seconds():
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def consume(job):
    if not job["fast"]:
        sys.modules["simplejpeg"] = None  # as if the extra [fast] were not installed
    import peers  # imports are not measured

    together = _meet(job)
    batches, close = peers.PIPELINES[job["pipeline"]](job)
    gc.collect()
    together()
    cpu, begin = cpu_seconds(), time.perf_counter()
    samples, first = 0, None
    for batch in batches:
        samples += len(batch[0])
        if first is None:
            first = time.perf_counter() - begin
            if job["first_only"]:
                break
    wall = time.perf_counter() - begin
    again = None
    if job["second_epoch"]:
        begin = time.perf_counter()
        for batch in batches:  # noqa: B007 - it must have come
            if again is None:
                again = time.perf_counter() - begin
    batch = batches = None
    close()
    cpu = cpu_seconds() - cpu
    return {"samples": samples, "wall_s": wall, "cpu_s": cpu, "first_s": first, "again_s": again}


def _meet(job):
    """Make this process a rank, if there are several; return what all of them wait in."""
    if job["ranks"] == 1:
        return lambda: None
    from torch import distributed

    warnings.filterwarnings("ignore", message="the 2 ranks may take different numbers of steps")
    distributed.init_process_group(
        "gloo", init_method=f"file://{job['meeting']}", rank=job["rank"], world_size=job["ranks"]
    )
    return distributed.barrier


def run_ranks(job):
    """Run a job as several ranks, each a fresh process; return their numbers as one."""
    with tempfile.TemporaryDirectory() as folder:
        jobs = [{**job, "rank": rank, "meeting": f"{folder}/ranks"} for rank in range(job["ranks"])]
        with ThreadPoolExecutor(len(jobs)) as executor:
            found = list(executor.map(run, jobs))
    return {
        "samples": sum(one["samples"] for one in found),
        "cpu_s": sum(one["cpu_s"] for one in found),
        **{name: max(one[name] for one in found) for name in ("wall_s", "first_s")},
    }


def run(job, pss_every_s=0.0):
    """Run a job in a fresh process; return its numbers, and the peak PSS of its process tree if asked for."""
    text = json.dumps(job)
    child = subprocess.Popen([sys.executable, __file__, text], stdout=subprocess.PIPE, text=True)
    peak = [0]
    if pss_every_s:
        watcher = threading.Thread(target=_watch, args=(child, pss_every_s, peak), daemon=True)
        watcher.start()
    out, _ = child.communicate()
    if child.returncode:
        raise SystemExit(f"{job['pipeline']} failed with status {child.returncode}")
    return {**json.loads(out.splitlines()[-1]), "pss_mb": peak[0] / 1e6}


def _watch(child, every_s, peak):
    while child.poll() is None:
        peak[0] = max(peak[0], sum(map(_pss, _tree(child.pid))))
        time.sleep(every_s)


def _tree(pid):
    children = {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found, queue = [], [pid]
    while queue:
        found.append(queue.pop())
        queue += children.get(found[-1], [])
    return found


def _pss(pid):
    try:
        for line in pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


if __name__ == "__main__":
    print(json.dumps(consume(json.loads(sys.argv[1]))), flush=True)
    os._exit(0)  # what a library leaves running is not this measurement's matter
