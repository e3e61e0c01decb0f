"""Answers of web servers of others, read with a limit, and what went wrong in words that quote nothing: of token endpoints, and of hosts of
policies. docs/reference.md "Login at next hops", "MTA-STS"

They are asked for unpacked and are not unpacked if they come packed: what is packed may be of any size once it is unpacked.

Who asks the web imports this module: it has what httpx would import at its first request, in the event loop.
"""

import os
import ssl

import anyio
import anyio.streams.tls
import httpx

UNPACKED = {"Accept-Encoding": "identity"}
WANTED_BY_HTTPX = (anyio.connect_tcp, anyio.create_memory_object_stream, anyio.streams.tls)  # each imports more once it is named


async def octets_of(answer: httpx.Response, maximum: int) -> bytes:
    """Of a stream. Raises: ValueError if there are more than `maximum`."""
    octets = b""
    async for part in answer.aiter_raw():
        octets += part
        if len(octets) > maximum:
            raise ValueError("it is too long")
    return octets


def reason_of_request(error: Exception) -> str:
    """In the words of OpenSSL or the system. httpx's own text might quote what was asked, with its secrets; a ValueError is ours."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"certificate verify failed: {cause.verify_message}"
        if isinstance(cause, ssl.SSLError):
            return str(cause.reason or "TLS failed").replace("_", " ").lower()
        if isinstance(cause, OSError) and cause.errno and cause.strerror:  # asyncio's text has the address instead of the reason
            return os.strerror(cause.errno).lower() if cause.errno > 0 else cause.strerror.lower()
        cause = cause.__cause__ or cause.__context__
    return type(error).__name__ if isinstance(error, httpx.HTTPError) else str(error) or type(error).__name__
