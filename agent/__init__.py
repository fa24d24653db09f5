"""The program: configuration, runners, monitoring and commands."""

if __name__ != "flafka.agent":  # without `flafka` in its path, each class would exist twice
    raise ImportError("import flafka.agent: this directory is part of the package flafka")
