"""Answers of web servers of others, read with a limit, and what went wrong in words that quote nothing: of token endpoints, and of hosts of
policies. docs/reference.md "Login at next hops", "MTA-STS"

They are asked for unpacked and are not unpacked if they come packed: what is packed may be of any size once it is unpacked. What comes is
counted as it arrives, and parsed in small parts: a server may send interim answers or chunks of one octet without end, and 64 KiB of them,
which is how much httpx reads at a time, would stop the event loop for hundreds of milliseconds.

Who asks the web imports this module: it has what httpx would import at its first request, in the event loop.
"""

import asyncio
import os
import ssl
from collections.abc import Iterable

import anyio
import anyio.streams.tls
import httpcore
import httpx

UNPACKED = {"Accept-Encoding": "identity"}
WANTED_BY_HTTPX = (anyio.connect_tcp, anyio.create_memory_object_stream, anyio.streams.tls)  # each imports more once it is named


PART_OCTETS = 1024  # parsed between two turns of the event loop
AROUND_OCTETS_MAX = 32 * 1024  # header fields, chunks' sizes


class AnswerTooLong(httpcore.ReadError):
    """More arrives than an answer may have."""


class BoundedStream(httpcore.AsyncNetworkStream):
    """A connection of which no more than `octets_max` are read for a request."""

    def __init__(self, stream: httpcore.AsyncNetworkStream, octets_max: int) -> None:
        self._stream, self._octets_max, self._count = stream, octets_max, 0

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109 - httpcore's
        """Raises: AnswerTooLong, httpcore.NetworkError, httpcore.TimeoutException."""
        if self._count:
            await asyncio.sleep(0)
        octets = await self._stream.read(min(max_bytes, PART_OCTETS), timeout)
        self._count += len(octets)
        if self._count > self._octets_max:
            raise AnswerTooLong("it is too long")
        return octets

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109 - httpcore's
        """Of a request. Raises: as `read`."""
        self._count = 0
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        """Close it."""
        await self._stream.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's
    ) -> httpcore.AsyncNetworkStream:
        """The same inside TLS. Raises: as `read`."""
        return BoundedStream(await self._stream.start_tls(ssl_context, server_hostname, timeout), self._octets_max)

    def get_extra_info(self, info: str) -> object:
        """Of the connection."""
        return self._stream.get_extra_info(info)


class BoundedBackend(httpcore.AsyncNetworkBackend):
    """Connections with a limit."""

    def __init__(self, backend: httpcore.AsyncNetworkBackend, octets_max: int) -> None:
        self._backend, self._octets_max = backend, octets_max

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Raises: httpcore.ConnectError, httpcore.ConnectTimeout."""
        return BoundedStream(await self._backend.connect_tcp(host, port, timeout, local_address, socket_options), self._octets_max)

    async def sleep(self, seconds: float) -> None:
        """Between attempts."""
        await self._backend.sleep(seconds)


class BoundedTransport(httpx.AsyncHTTPTransport):
    """For answers of at most `octets_max`. httpx has no way to be given a backend; a test fails where this one is not used."""

    def __init__(self, octets_max: int, *, verify: ssl.SSLContext | bool = True, limits: httpx.Limits | None = None) -> None:
        super().__init__(verify=verify, limits=limits or httpx.Limits(), trust_env=False)
        assert isinstance(self._pool, httpcore.AsyncConnectionPool)
        self._pool._network_backend = BoundedBackend(self._pool._network_backend, octets_max + AROUND_OCTETS_MAX)


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
        if isinstance(cause, AnswerTooLong):
            return str(cause)
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"certificate verify failed: {cause.verify_message}"
        if isinstance(cause, ssl.SSLError):
            return str(cause.reason or "TLS failed").replace("_", " ").lower()
        if isinstance(cause, OSError) and cause.errno and cause.strerror:  # asyncio's text has the address instead of the reason
            return os.strerror(cause.errno).lower() if cause.errno > 0 else cause.strerror.lower()
        cause = cause.__cause__ or cause.__context__
    return type(error).__name__ if isinstance(error, httpx.HTTPError) else str(error) or type(error).__name__
