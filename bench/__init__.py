"""Benchmarks: `./dev bench NAME`. Each prints ratios measured in one run, with counts and contents checked."""

import signal

# What is ended from outside, as by `timeout`, still stops its servers.
signal.signal(signal.SIGTERM, signal.default_int_handler)
