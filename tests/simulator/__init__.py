"""A simulator: the project's own code on modelled servers, clocks and threads, in one process, from one seed."""
