"""Benchmarks of Flafka and its alternatives, run by `./dev bench`; `bench/frame` is their framework."""
