"""Interceptors: what changes or drops events on their way, one module each, named by its type."""

from plugins import Component, hookimpl


@hookimpl
def components() -> list[type[Component]]:  # type: ignore[type-arg]
    """The built-in interceptors."""
    from interceptors.filter import FilterInterceptor
    from interceptors.host import HostInterceptor
    from interceptors.mask import MaskInterceptor
    from interceptors.static import StaticInterceptor
    from interceptors.timestamp import TimestampInterceptor

    return [FilterInterceptor, HostInterceptor, MaskInterceptor, StaticInterceptor, TimestampInterceptor]
