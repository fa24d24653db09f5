"""`python -m agent.services kafka hdfs …`: make sure that Java and the jars of these servers are there."""

import sys

from agent.services import ServiceError
from agent.services.jars import ensure_all
from agent.services.java import find_java

try:
    find_java()
    ensure_all(*sys.argv[1:])
except ServiceError as error:
    sys.exit(f"error: {error}")
