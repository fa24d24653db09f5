"""Recorder of function calls: on the PYTHONPATH of an agent, Python imports it into each of its processes.

Each process appends to a file of its own in the directory that FLAFKA_WALKS_DIRECTORY names, a JSON object a line:
the calls of functions below FLAFKA_WALKS_ROOT since the line before, and the time up to which the calls are complete.
"""

import atexit
import collections
import json
import os
import sys
import threading
import time

DIRECTORY = os.environ.get("FLAFKA_WALKS_DIRECTORY")
ROOT = os.path.realpath(os.environ.get("FLAFKA_WALKS_ROOT", "")) + os.sep
PACKAGES = ("agent", "plugins", "sources", "channels", "interceptors", "sinks", "flafka")
WRITE_SECONDS = 0.2
SLOT_SECONDS = 0.02

calls = collections.deque()
running = threading.local()
places = {}
"""Path below ROOT by file name of code; None for a file of another project."""


def place_of(name):
    """Return the resolved path below ROOT, so that `flafka/agent` and `agent` are one; None for other files."""
    path = os.path.realpath(name)
    below = path.removeprefix(ROOT)
    return below if below != path and below.partition(os.sep)[0] in PACKAGES else None


def is_ours(code):
    """Return True for code of the project."""
    name = code.co_filename
    if name not in places:
        places[name] = place_of(name)
    return places[name] is not None


def record(frame, event, _):
    """Profile function: record a call of the project's code, and the functions that were running already.

    A loop that waits for a batch was called long before. Each thread records its callers once a SLOT_SECONDS.
    """
    if event != "call" or not is_ours(frame.f_code):
        return
    now, thread = time.monotonic(), threading.current_thread().name
    slot = now // SLOT_SECONDS
    if getattr(running, "slot", None) != slot:
        running.slot, running.seen = slot, set()
    callers, caller = [], frame.f_back
    while caller is not None and caller.f_code not in running.seen:
        running.seen.add(caller.f_code)
        callers.append(caller.f_code)
        caller = caller.f_back
    calls.extend((now, code, thread) for code in reversed(callers) if is_ours(code))
    calls.append((now, frame.f_code, thread))


def write():
    """Append the calls since the last write. One write call: a reader sees a whole line, or its beginning."""
    until, taken = time.monotonic(), []
    for _ in range(len(calls)):
        now, code, thread = calls.popleft()
        taken.append((now, places[code.co_filename], code.co_firstlineno, code.co_qualname, thread))
    line = json.dumps({"until": until, "process": sys.argv[:3], "calls": taken}) + "\n"
    file = os.open(f"{DIRECTORY}/{os.getpid()}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


def write_at_intervals():
    """Write until the process ends; a worker of Spark ends without `atexit`."""
    while True:
        time.sleep(WRITE_SECONDS)
        with writing:
            write()


def write_at_exit():
    """Write what came since the last interval."""
    with writing:
        write()


def begin():
    """Start the writing thread; a forked process has a copy of the records, and no such thread."""
    global writing
    calls.clear()
    writing = threading.Lock()
    threading.Thread(target=write_at_intervals, name="recorder", daemon=True).start()


if DIRECTORY:
    begin()
    os.register_at_fork(after_in_child=begin)
    atexit.register(write_at_exit)
    threading.setprofile(record)
    sys.setprofile(record)
