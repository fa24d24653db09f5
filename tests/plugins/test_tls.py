"""Options of TLS: an unusable value is reported with the configuration, not at a connection."""

import pytest

from flafka.sinks.avro import AvroSinkConfig

NEEDED = {"hostname": "h", "port": "1", "ssl": "true"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"include-protocols": "SSLv3"}, "leave no version of TLS"),
        ({"include-protocols": "TLSv1.2", "exclude-protocols": "TLSv1.2"}, "leave no version of TLS"),
        ({"include-protocols": "TLSv1.1 TLSv1.3"}, "without a gap"),
        ({"include-protocols": "TLSv1.2", "include-cipher-suites": "TLS_NONE"}, "leave no cipher suite"),
        ({"include-protocols": "TLSv9"}, "not 'TLSv9'"),
    ],
)
def test_unsupported_tls_options_are_refused(given, message):
    config, problems = AvroSinkConfig.parse({**NEEDED, **given})
    assert config is None
    assert [message in problem.message for problem in problems] == [True]
    assert AvroSinkConfig.parse({**NEEDED, **given, "ssl": "false"})[0] is not None or "TLSv9" in message


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"exclude-protocols": "SSLv3 SSLv2Hello TLSv1 TLSv1.1"},
        {"include-protocols": "TLSv1.2 TLSv1.3", "exclude-protocols": "TLSv1.3"},
        {"include-cipher-suites": "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"},
    ],
)
def test_valid_tls_options_are_accepted(given):
    config, problems = AvroSinkConfig.parse({**NEEDED, **given})
    assert not problems
    assert config is not None
    assert config.context() is not None
