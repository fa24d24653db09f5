"""The program: configuration, runners, monitoring and commands."""

if __name__ != "flafka.agent":  # past `flafka` every class would be there twice
    raise ImportError("import flafka.agent: this folder is a part of the package flafka")
