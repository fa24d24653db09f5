"""What the source `http` does otherwise than Flume's."""

from __future__ import annotations

from plugins import Difference

HTTP = (
    Difference(
        flume="a header that is null is there, without a value",
        here="it is absent",
    ),
    Difference(
        flume="some requests that are no JSON are answered 500, a wrong `\\u` escape for instance",
        here="400, as all others that are none",
    ),
    Difference(
        flume="an object of other fields than `headers` and `body`, without a body, is an empty event",
        here="the request is answered 400 with these fields' names, as all that it holds would be lost",
    ),
    Difference(
        flume="a body with `Content-Encoding: gzip` is answered 400",
        here="it is unpacked, except for `handler = blob`; any other encoding is answered 415",
    ),
    Difference(
        flume="a request of any size is read",
        here="one too large is answered 413",
    ),
    Difference(
        flume="the answer is 503 as soon as the channel is full",
        here="the source waits `requestTimeout` for the channel, then answers 503; the client may send again",
    ),
)
