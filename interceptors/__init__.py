"""Interceptors, which change or drop events, each in a module named by its type."""

from flafka.plugins import Component, hookimpl


@hookimpl
def components() -> list[type[Component]]:
    """Return the built-in interceptors."""
    from flafka.interceptors.filter import FilterInterceptor
    from flafka.interceptors.host import HostInterceptor
    from flafka.interceptors.json import JsonInterceptor
    from flafka.interceptors.mask import MaskInterceptor
    from flafka.interceptors.morphline import MorphlineInterceptor
    from flafka.interceptors.regex_extractor import RegexExtractorInterceptor
    from flafka.interceptors.regex_filter import RegexFilterInterceptor
    from flafka.interceptors.remove_header import RemoveHeaderInterceptor
    from flafka.interceptors.sample import SampleInterceptor
    from flafka.interceptors.search_replace import SearchReplaceInterceptor
    from flafka.interceptors.static import StaticInterceptor
    from flafka.interceptors.timestamp import TimestampInterceptor
    from flafka.interceptors.uuid import UUIDInterceptor

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
