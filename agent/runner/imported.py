"""Modules that an agent imports before its sources open.

An import needs file descriptors and memory, and fails when the process has none left. The first failure, the first
request and a sink that opens again must therefore not import. Some libraries, once imported in part, stay unusable.
"""

from __future__ import annotations

import encodings.idna
import importlib.util
from dataclasses import replace

import numpy.ma
import uvicorn.lifespan.off
import uvicorn.loops.asyncio
import uvicorn.protocols.http.h11_impl

from flafka.agent.topology import AgentSpec
from flafka.plugins import FlafkaError
from flafka.plugins.component import require
from flafka.plugins.errors import ANY_FAILURE

BY_LIBRARIES = (
    encodings.idna,
    numpy.ma,
    uvicorn.lifespan.off,
    uvicorn.loops.asyncio,
    uvicorn.protocols.http.h11_impl,
)
"""Modules that a library imports at its first use: names of hosts, PyArrow, HTTP servers."""


def import_libraries(spec: AgentSpec) -> None:
    """Import what the components of a configuration import after they are made, except those that run on Spark.

    A library that is not installed is left to the component. Raises FlafkaError where an import fails otherwise.
    """
    here = replace(spec, sinks=tuple(sink for sink in spec.sinks if sink.runner == "local"))
    for one in here.components():
        for module, extra in one.cls.libraries_for(one.config).items():
            try:
                if _is_installed(module):
                    require(module, extra)
            except ANY_FAILURE as e:
                raise FlafkaError(f"{one.path}: {module} cannot be imported: {type(e).__name__}: {e}") from e


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package of that module is missing
        return False
