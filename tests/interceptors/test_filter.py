"""Options of the interceptor `filter`."""

import pytest

from flafka.interceptors.filter import FilterConfig


@pytest.mark.parametrize(
    ("properties", "option", "message"),
    [
        ({}, "match", "exactly one of match"),
        ({"match": "a", "equals": "b"}, "match", "exactly one of match"),
        ({"match": "a(?=b)", "allowBacktracking": "false"}, "match", "remove allowBacktracking"),
        ({"match": "("}, "match", "missing )"),
        ({"match": "a", "drop": "yes"}, "drop", "must be true or false, not 'yes'"),
        ({"match": "a", "on": ""}, "on", "must have at least 1 characters, not ''"),
    ],
)
def test_wrong_options_are_refused(properties: dict[str, str], option: str, message: str) -> None:
    config, problems = FilterConfig.parse(properties)
    assert config is None
    assert [problem.option for problem in problems] == [option]
    assert message in problems[0].message
