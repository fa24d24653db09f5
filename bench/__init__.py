"""Benchmarks: `./dev bench NAME`. Each prints ratios measured in one run, with counts and contents checked."""
