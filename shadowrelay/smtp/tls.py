"""TLS contexts for receive connectors, sessions to peers, and next hops. RFC 3207, RFC 7435; docs/setup.md "Certificates"."""

import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from cryptography import x509

from shadowrelay.model.replies import ConfigurationError
from shadowrelay.model.settings import Tls
from shadowrelay.model.values import dataclass
from shadowrelay.smtp.client_session import reason_of
from shadowrelay.smtp.server_names import Named, dns_names, show_by_name
from shadowrelay.trust import PeerTrust, trusting


@dataclass(frozen=True, slots=True)
class TlsContexts:
    """Contexts made from one reading of the files in [tls]: all of them, or none. Open sessions keep their context.

    Shapes: `ends` has, by key of [tls], when its certificates end, aware; of several authorities the latest.
    """

    asking: ssl.SSLContext  # for receiving; requests the client's certificate
    anonymous: ssl.SSLContext  # for receiving; does not
    to_peers: ssl.SSLContext
    administration: ssl.SSLContext  # for the API: demands the client's certificate
    ends: Mapping[str, datetime]
    trust: PeerTrust

    @classmethod
    def read(cls, tls: Tls) -> "TlsContexts":
        """Raises: ConfigurationError for files that cannot be used."""
        administration = server_context(tls)
        if tls.peer_authority is not None:
            administration.verify_mode = ssl.CERT_REQUIRED
        contexts = server_context(tls), anonymous_server_context(tls), peer_context(tls), administration
        others, ends_of_others = _further(tls)
        for context in contexts[:2]:
            show_by_name(context, others)
        trust = PeerTrust.read(tls.peer_authority, tls.peer_revoked)
        ends = {"certificate": _certificates_in(tls.certificate)[0].not_valid_after_utc}  # the node's own is the first
        if tls.peer_authority is not None:
            ends["peer_authority"] = max(each.not_valid_after_utc for each in _certificates_in(tls.peer_authority))
        ends |= ends_of_others
        return cls(*contexts, ends, trust)

    def receiving(self, *, is_peer: bool) -> ssl.SSLContext:
        """For a client that calls itself a peer, or another one: who is not asked cannot fail by a certificate of another authority."""
        return self.asking if is_peer else self.anonymous


def _further(tls: Tls) -> tuple[list[Named], dict[str, datetime]]:
    """The further certificates by their names, and when they end, by their keys. Raises: ConfigurationError."""
    found: list[Named] = []
    ends: dict[str, datetime] = {}
    for number, further in enumerate(tls.certificates):
        first = _certificates_in(further.certificate)[0]
        found.append((dns_names(first), anonymous_server_context(Tls(certificate=further.certificate, key=further.key))))
        ends[f"certificates[{number}]"] = first.not_valid_after_utc
    return found, ends


def server_context(tls: Tls) -> ssl.SSLContext:
    """For STARTTLS on a receive connector. With a `peer_authority`, a client certificate is requested but optional.

    A client with a certificate of another authority fails the handshake; OpenSSL through Python allows nothing else. With TLS 1.3 the
    client learns that only when its session breaks, and defers its mail. So only peers are asked (`Reception.tls_context`).
    Raises: ConfigurationError for files that cannot be used.
    """
    context = anonymous_server_context(tls)
    if tls.peer_authority is not None:
        with _usable(f"peer_authority {tls.peer_authority}"):
            context.load_verify_locations(cafile=tls.peer_authority)
        context.verify_mode = ssl.CERT_OPTIONAL
    return context


def anonymous_server_context(tls: Tls) -> ssl.SSLContext:
    """As `server_context`, without requesting a client certificate. Raises: ConfigurationError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2  # RFC 8996
    _load_own(context, tls)
    return context


def peer_context(tls: Tls) -> ssl.SSLContext:
    """For sessions to peers: verifies the peer's name against `peer_authority` (else the system's authorities), and presents
    our certificate. Raises: ConfigurationError for files that cannot be used."""
    with _usable(f"peer_authority {tls.peer_authority}"):
        context = trusting(tls.peer_authority)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load_own(context, tls)
    return context


def opportunistic_context() -> ssl.SSLContext:
    """For next hops: encrypted, not verified. RFC 7435."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _load_own(context: ssl.SSLContext, tls: Tls) -> None:
    with _usable(f"certificate {tls.certificate} with key {tls.key}"):
        context.load_cert_chain(tls.certificate, tls.key)


def _certificates_in(path: Path) -> list[x509.Certificate]:
    with _usable(f"certificates in {path}"):
        return x509.load_pem_x509_certificates(path.read_bytes())


@contextmanager
def _usable(what: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        reason = reason_of(error)
        raise ConfigurationError(f"tls: cannot use {what} ({reason}); give readable PEM files that belong together") from error
