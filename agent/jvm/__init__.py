"""Java, and the jars in `locks/`, for the Spark driver and the servers of `flafka.agent.services`."""


class ServiceError(Exception):
    """Failure to provide Java, a jar or a server. The message has the remedy."""
