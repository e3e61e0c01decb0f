"""Which certificates are those of peers: their names, who signed them, what was revoked. RFC 5280, RFC 6125; docs/security.md

One judgement for sessions from peers, sessions to them, and the API, in addition to what OpenSSL verifies in the handshake: only DNS names
count, letter for letter, and neither the common name nor a pattern; and whoever is in `tls.peer_revoked` is nobody. OpenSSL's own check of
revocation lists is not used: it refuses every peer as soon as a list is out of date, and says nothing about sessions that are open.
"""

import re
import ssl
from collections.abc import Iterable, Sequence
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization

from shadowrelay.model.replies import ConfigurationError
from shadowrelay.model.values import dataclass

REVOKED = "it was revoked: it is in tls.peer_revoked"
AUTHORITY_REVOKED = "an authority that signed it was revoked: it is in tls.peer_revoked"
_PEM = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----.*?-----END \1-----", re.DOTALL)
_FINGERPRINT = re.compile(
    r"(?:sha256 fingerprint=)?((?:[0-9a-f]{2}:?){31}[0-9a-f]{2})"
)  # also as `openssl x509 -fingerprint -sha256` prints it


def trusting(authority: Path | None) -> ssl.SSLContext:
    """Verifies the node's name, and its certificate by the authorities in this file, or by the system's. Raises: OSError (or its child
    ssl.SSLError) for a file that cannot be used."""
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=authority)
    # A default since Python 3.13: it refuses authorities without KeyUsage, as `init` made them until then, and so a cluster's upgrade would
    # be an outage. Receive connectors do not have it either. `check` names such an authority.
    context.verify_flags &= ~ssl.VerifyFlags.VERIFY_X509_STRICT
    context.hostname_checks_common_name = False  # patterns are left to `PeerTrust`
    return context


def names_in(certificate: object) -> frozenset[str]:
    """The DNS names of a verified certificate from `ssl.getpeercert()`, lower case; empty without one. A name with * names nobody."""
    if not isinstance(certificate, dict):
        return frozenset()
    return frozenset(value.lower() for kind, value in certificate.get("subjectAltName", ()) if kind == "DNS" and "*" not in value)


def ended(certificate: object, now: datetime) -> str:
    """Why a certificate from `ssl.getpeercert()` counts no more, although it did in the handshake; "" if it does, or none was shown."""
    if not isinstance(certificate, dict) or not (end := certificate.get("notAfter")):
        return ""
    return "" if now.timestamp() <= ssl.cert_time_to_seconds(str(end)) else f"it expired at {end}"


Chain = tuple[bytes, ...]
"""Certificates (DER): the bearer's, who signed it, and so on to an authority. Empty: none was shown."""


def chain_of(tls: ssl.SSLObject | ssl.SSLSocket) -> Chain:
    """What the other end has shown, as it was verified; its own certificate alone where nothing more is known."""
    own = tls.getpeercert(True)
    if own is None:
        return ()
    if hasattr(tls, "get_verified_chain"):  # since Python 3.13
        return (own, *[bytes(each) for each in tls.get_verified_chain()[1:]])
    # before, the same function is there, but not public; without it only the bearer's own certificate could be revoked
    verified: Sequence[Any] = getattr(getattr(tls, "_sslobj", None), "get_verified_chain", list)() or ()
    return (own, *[ssl.PEM_cert_to_DER_cert(each.public_bytes()) for each in verified[1:]])


@dataclass(frozen=True, slots=True)
class PeerTrust:
    """From one reading of `tls.peer_authority` and `tls.peer_revoked`.

    Shapes: `serials` are pairs of issuer (DER) and number; `fingerprints` are SHA-256 in lower case, without colons.
    """

    authorities: tuple[x509.Certificate, ...] = ()
    serials: frozenset[tuple[bytes, int]] = frozenset()
    fingerprints: frozenset[str] = frozenset()

    @classmethod
    def read(cls, authority: Path | None, revoked: Path | None) -> "PeerTrust":
        """Raises: ConfigurationError for files that cannot be used, with key and remedy."""
        authorities: tuple[x509.Certificate, ...] = ()
        if authority is not None:
            try:
                authorities = tuple(x509.load_pem_x509_certificates(authority.read_bytes()))
            except (OSError, ValueError) as exc:
                raise ConfigurationError(f"tls.peer_authority: {authority} cannot be used; give a readable PEM file") from exc
        if revoked is None:
            return cls(authorities)
        try:
            text = revoked.read_bytes().decode("utf-8")
        except (OSError, ValueError) as exc:
            reason = getattr(exc, "strerror", None) or "it is not text"
            raise ConfigurationError(f"tls.peer_revoked: {revoked} cannot be read ({reason}); an empty file revokes nothing") from exc
        return cls(authorities, *_revoked(revoked, text, authorities))

    def refusal(self, chain: Chain) -> str:
        """Why who has shown this is no peer, although it was verified; "" if nothing is known against it."""
        for number, certificate in enumerate(chain if self.fingerprints or self.serials else ()):
            reason = REVOKED if number == 0 else AUTHORITY_REVOKED
            if sha256(certificate).hexdigest() in self.fingerprints:
                return reason
            if self.serials:
                read = x509.load_der_x509_certificate(certificate)
                if (read.issuer.public_bytes(), read.serial_number) in self.serials:
                    return reason
        return ""

    def refusal_of_session(self, chain: Chain, before: "PeerTrust") -> str:
        """The same about an open session, when the files were read again: it must still be of an authority, if one is gone."""
        if (reason := self.refusal(chain)) or not chain or set(before.authorities) <= set(self.authorities):
            return reason
        shown = [x509.load_der_x509_certificate(each) for each in chain]
        is_signed = any(_has_signed(one, each) for one in self.authorities for each in shown)
        return "" if is_signed else "no authority in tls.peer_authority has signed it"

    def refusal_of_server(self, tls: ssl.SSLObject | ssl.SSLSocket, name: str) -> str:
        """Why the server at the other end of this connection, which OpenSSL has verified, is not the peer with this name; "" if it is."""
        if name.rstrip(".").lower() not in (names := names_in(tls.getpeercert())):
            return f"its certificate is for {', '.join(sorted(names)) or 'no name'}, not for {name}"
        return self.refusal(chain_of(tls))


class CheckedContext(ssl.SSLContext):
    """For blocking connections to peers: the server must be the one that was meant before anything is said to it, such as a token."""

    trust = PeerTrust()
    is_named = True  # the server is a peer, known by its name

    def wrap_socket(self, *arguments: object, **named: object) -> ssl.SSLSocket:
        """Raises: ssl.SSLCertVerificationError."""
        wrapped: ssl.SSLSocket = super().wrap_socket(*arguments, **named)  # type: ignore[arg-type]
        name = str(named.get("server_hostname") or "")
        if reason := self.trust.refusal_of_server(wrapped, name) if self.is_named else self.trust.refusal(chain_of(wrapped)):
            wrapped.close()
            raise not_verified(reason)
        return wrapped


def not_verified(reason: str) -> ssl.SSLCertVerificationError:
    """As OpenSSL reports it."""
    error = ssl.SSLCertVerificationError(1, reason)
    error.verify_code, error.verify_message = 1, reason
    return error


def _revoked(file: Path, text: str, authorities: Iterable[x509.Certificate]) -> tuple[frozenset[tuple[bytes, int]], frozenset[str]]:
    """Lists, certificates and fingerprints, in any order. Raises: ConfigurationError."""
    serials: set[tuple[bytes, int]] = set()
    fingerprints: set[str] = set()
    for block in _PEM.finditer(text):
        try:
            if block[1] == "X509 CRL":
                found = x509.load_pem_x509_crl(block[0].encode())
                _require_signed(file, found, authorities)
                serials |= {(found.issuer.public_bytes(), entry.serial_number) for entry in found}
            elif block[1] == "CERTIFICATE":
                whole = x509.load_pem_x509_certificate(block[0].encode()).public_bytes(serialization.Encoding.DER)
                fingerprints.add(sha256(whole).hexdigest())
            else:
                raise ConfigurationError(f"tls.peer_revoked: {file} has a {block[1]}; give revocation lists, certificates or fingerprints")
        except ValueError as exc:
            raise ConfigurationError(f"tls.peer_revoked: {file} has a damaged {block[1]}; write the file anew") from exc
    for number, line in enumerate(_PEM.sub(lambda block: "\n" * block[0].count("\n"), text).splitlines(), 1):
        said = line.partition("#")[0].strip().lower()
        if not said:
            continue
        if (found_line := _FINGERPRINT.fullmatch(said)) is None:
            raise ConfigurationError(
                f"tls.peer_revoked: {file}, line {number} is none of a revocation list, a certificate (PEM) and a SHA-256 fingerprint; "
                "openssl x509 -noout -fingerprint -sha256 -in FILE prints one"
            )
        fingerprints.add(found_line[1].replace(":", ""))
    return frozenset(serials), frozenset(fingerprints)


def _require_signed(file: Path, found: x509.CertificateRevocationList, authorities: Iterable[x509.Certificate]) -> None:
    of_issuer = [one for one in authorities if one.subject == found.issuer]
    if of_issuer and not any(found.is_signature_valid(one.public_key()) for one in of_issuer):  # type: ignore[arg-type]
        raise ConfigurationError(f"tls.peer_revoked: {file} has a revocation list that tls.peer_authority did not sign; get it again")


def _has_signed(authority: x509.Certificate, leaf: x509.Certificate) -> bool:
    try:
        leaf.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True
