"""A deliverer on loopback, and what it delivers."""

import contextlib
import ssl
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from math import inf

from shadowrelay.model.message import Content, Envelope
from shadowrelay.model.replies import PermanentDeliveryError, Reply, TransientDeliveryError
from shadowrelay.model.routing import Destination, HostPort
from shadowrelay.ports import DeliveryJob, DeliveryReport
from shadowrelay.smtp.client import ConnectOptions, TlsUse
from shadowrelay.smtp.deliverer import SmtpDeliverer
from shadowrelay.smtp.host_names import HostNames, Lookups
from shadowrelay.smtp.mta_sts import MtaSts
from shadowrelay.smtp.resolver import Exchange
from tests.kit.clock import PATIENCE_SECONDS
from tests.kit.ledger import a_content, an_envelope
from tests.kit.smtp_servers import ScriptedServer

BODY = b"Subject: hello\r\n\r\n.dot\r\n"
CONTENT = a_content(BODY)
TAKEN = Reply(250, "2.0.0", "taken")


class Zone:
    """A resolver of fixed answers."""

    def __init__(self, exchanges: tuple[Exchange, ...], addresses: dict[str, tuple[HostPort, ...]]) -> None:
        self._exchanges = exchanges
        self._addresses = addresses

    async def exchanges(self, domain: str) -> tuple[Exchange, ...]:
        if not self._exchanges:
            raise PermanentDeliveryError(Reply(550, "5.1.2", "none"), domain)
        return self._exchanges

    async def addresses(self, host: str, port: int = 25) -> tuple[HostPort, ...]:
        if host not in self._addresses:
            raise TransientDeliveryError(Reply(451, "4.4.3", "none"), host)
        return self._addresses[host]


def at(server: ScriptedServer) -> HostPort:
    return HostPort("127.0.0.1", server.port)


def route(*hosts: HostPort) -> Destination:
    return Destination("route", hosts)


@contextlib.asynccontextmanager
async def a_deliverer(
    zone: Zone | None = None,
    *,
    concurrency: int = 20,
    idle_seconds: float = 60.0,
    unused_seconds: float = 60.0,
    tls: ssl.SSLContext | None = None,
    connect_seconds: float = PATIENCE_SECONDS,
    sends_8bit: bool = True,
    sends_chunks: bool = True,
    names: HostNames | None = None,
    sessions_max: float = inf,
    policies: MtaSts | None = None,
    mx_port: int = 25,
    source: Sequence[str] = (),
) -> AsyncIterator[SmtpDeliverer]:
    use = TlsUse.NEVER if tls is None else TlsUse.OPPORTUNISTIC
    deliverer = SmtpDeliverer(
        ConnectOptions("me.example", use, tls, dial=(names or HostNames(Lookups())).dial, connect_seconds=connect_seconds),
        zone or Zone((), {}),
        concurrency_per_destination=concurrency,
        connection_inactivity_timeout=timedelta(seconds=idle_seconds),
        sends_8bit=sends_8bit,
        sends_chunks=sends_chunks,
        unused_session_timeout=timedelta(seconds=unused_seconds),
        names=names,
        shuffle=lambda exchanges: exchanges.reverse(),
        sessions_max=sessions_max,
        policies=policies,
        mx_port=mx_port,
        source=source,
    )
    try:
        yield deliverer
    finally:
        await deliverer.close()


def a_job(destination: Destination, envelope: Envelope, may_end_data=lambda: True, content=CONTENT) -> DeliveryJob:
    async def read_content() -> Content:
        return content

    return DeliveryJob(destination, envelope, envelope.ordinals, b"", read_content, may_end_data, lambda: inf)


async def deliver(deliverer: SmtpDeliverer, destination: Destination, recipients_count: int = 1, *, may_end: bool = True) -> DeliveryReport:
    envelope = an_envelope(recipients_count)
    return await deliverer.deliver(a_job(destination, envelope, lambda: may_end))
