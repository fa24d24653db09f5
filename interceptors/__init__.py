"""Interceptors: what changes or drops events on their way, one module each, named by its type."""

from plugins import Component, hookimpl


@hookimpl
def components() -> list[type[Component]]:
    """The built-in interceptors."""
    from interceptors.filter import FilterInterceptor
    from interceptors.host import HostInterceptor
    from interceptors.json import JsonInterceptor
    from interceptors.mask import MaskInterceptor
    from interceptors.morphline import MorphlineInterceptor
    from interceptors.regex_extractor import RegexExtractorInterceptor
    from interceptors.regex_filter import RegexFilterInterceptor
    from interceptors.remove_header import RemoveHeaderInterceptor
    from interceptors.sample import SampleInterceptor
    from interceptors.search_replace import SearchReplaceInterceptor
    from interceptors.static import StaticInterceptor
    from interceptors.timestamp import TimestampInterceptor
    from interceptors.uuid import UUIDInterceptor

    return [
        FilterInterceptor,
        HostInterceptor,
        JsonInterceptor,
        MaskInterceptor,
        MorphlineInterceptor,
        RegexExtractorInterceptor,
        RegexFilterInterceptor,
        RemoveHeaderInterceptor,
        SampleInterceptor,
        SearchReplaceInterceptor,
        StaticInterceptor,
        TimestampInterceptor,
        UUIDInterceptor,
    ]
