"""`interceptor_chain`: events through several interceptors, in the form of suite `interceptor`."""

from tests.conformance.adapters.interceptor import normalise, op_interceptor_chain

__all__ = ["normalise", "op_interceptor_chain"]
