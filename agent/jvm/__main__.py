"""`python -m flafka.agent.jvm kafka hdfs …`: fetch the jars of these locks, and check that there is a Java."""

import sys

from flafka.agent.jvm import ServiceError
from flafka.agent.jvm.jars import ensure_all
from flafka.agent.jvm.java import find_java

try:
    find_java()
    ensure_all(*sys.argv[1:])
except ServiceError as error:
    sys.exit(f"error: {error}")
