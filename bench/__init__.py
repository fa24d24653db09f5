"""`./dev bench`: this project beside what a user would take instead; `bench/frame` is what all benchmarks share."""
