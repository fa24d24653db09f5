"""Recorder of function calls: on the PYTHONPATH of an agent, Python imports it into each of its processes.

Each process appends JSON objects, one per line, to its own file in the directory FLAFKA_WALKS_DIRECTORY. A line has
the calls of functions below FLAFKA_WALKS_ROOT since the previous line, and the time up to which calls are complete.
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
project_paths = {}
"""Path below ROOT by file name of code; None for a file of another project."""


def project_path(name):
    """Return the resolved path below ROOT, so that `flafka/agent` and `agent` are one; None for other files."""
    path = os.path.realpath(name)
    below = path.removeprefix(ROOT)
    return below if below != path and below.partition(os.sep)[0] in PACKAGES else None


def is_project_code(code):
    """Return True for code of the project."""
    name = code.co_filename
    if name not in project_paths:
        project_paths[name] = project_path(name)
    return project_paths[name] is not None


def record(frame, event, _):
    """Profile function: record a call of the project's code, and the functions that were running already.

    A loop that waits for a batch was called long before. Each thread records its callers once per SLOT_SECONDS.
    """
    if event != "call" or not is_project_code(frame.f_code):
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
    calls.extend((now, code, thread) for code in reversed(callers) if is_project_code(code))
    calls.append((now, frame.f_code, thread))


def write():
    """Append the calls since the last write, in one system call: a reader sees a complete line, or its beginning."""
    until, entries = time.monotonic(), []
    for _ in range(len(calls)):
        now, code, thread = calls.popleft()
        entries.append((now, project_paths[code.co_filename], code.co_firstlineno, code.co_qualname, thread))
    line = json.dumps({"until": until, "process": sys.argv[:3], "calls": entries}) + "\n"
    file = os.open(f"{DIRECTORY}/{os.getpid()}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


def write_at_intervals():
    """Write until the process ends. Spark workers end without `atexit`."""
    while True:
        time.sleep(WRITE_SECONDS)
        with writing:
            write()


def write_at_exit():
    """Write the calls since the last interval."""
    with writing:
        write()


def begin():
    """Start the writing thread. A forked process inherits the records, but not the thread."""
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
