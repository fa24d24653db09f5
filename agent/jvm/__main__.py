"""`python -m flafka.agent.jvm kafka hdfs …`: check for Java, and download the jars of these locks."""

import sys

from flafka.agent.jvm import ServiceError
from flafka.agent.jvm.jars import ensure_all
from flafka.agent.jvm.java import find_java

try:
    find_java()
    ensure_all(*sys.argv[1:])
except ServiceError as error:
    sys.exit(f"error: {error}")
