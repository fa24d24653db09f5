"""Java and the jars of `locks/`, which Spark's driver and the servers of `flafka.agent.services` run."""


class ServiceError(Exception):
    """Java, a jar or a server could not be made ready; the message says what to do."""
