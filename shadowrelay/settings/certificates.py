"""Checks the files of [tls]: whether they can be used, and whether peers and clients would accept them. docs/setup.md "Certificates".

Files that cannot be used keep a node from starting (`unusable`). A certificate that others refuse does not, because mail that waits in the
queue must still be delivered while somebody makes a new one: `check` ends with an error (`refused`), `serve` warns.

Nodes check each other's certificates by the same rules under every Python (`shadowrelay/trust.py`). Programs with the stricter ones
of newer Pythons refuse what earlier versions of `init` made, and `refused_by_newer` says so.
"""

import ssl
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization

from shadowrelay.model.replies import ConfigurationError
from shadowrelay.model.settings import Settings, Tls
from shadowrelay.trust import PeerTrust

CERTIFICATE_LEFT_MIN = timedelta(days=30)
NEW_AUTHORITY = "make a new one: shadowrelay init DIRECTORY --renew --authority (docs/setup.md, A new authority)"
NEW_CERTIFICATE = "make a new one: shadowrelay init DIRECTORY --renew"


def unusable(tls: Tls) -> Iterator[str]:
    """Problems for which no TLS context can be made, each with its key and the remedy."""
    files = {"certificate": tls.certificate, "key": tls.key}
    if tls.peer_authority is not None:
        files["peer_authority"] = tls.peer_authority
    contents: dict[str, bytes] = {}
    for name, file in files.items():
        try:
            contents[name] = file.read_bytes()
        except OSError as exc:
            yield f"tls.{name}: {file} cannot be read ({exc.strerror}); give an existing PEM file that this user may read"
    if tls.peer_revoked is not None and (tls.peer_authority is None or _certificates(contents.get("peer_authority", b""))):
        try:
            PeerTrust.read(tls.peer_authority, tls.peer_revoked)
        except ConfigurationError as exc:
            yield str(exc)
    if "certificate" in contents and "key" in contents:
        yield from _wrong_pair(tls, contents["certificate"], contents["key"])
    for number, further in enumerate(tls.certificates):
        pair = Tls(certificate=further.certificate, key=further.key)
        yield from (problem.replace("tls.", f"tls.certificates[{number}].", 1) for problem in unusable(pair))
    if "peer_authority" in contents and not _certificates(contents["peer_authority"]):
        yield f"tls.peer_authority: {tls.peer_authority} has no certificate in PEM form; give the authority's PEM file"


def _wrong_pair(tls: Tls, certificate_pem: bytes, key_pem: bytes) -> Iterator[str]:
    certificates = _certificates(certificate_pem)
    if not certificates:
        yield f"tls.certificate: {tls.certificate} has no certificate in PEM form; give the node's certificate"
    try:
        key = serialization.load_pem_private_key(key_pem, None)
    except TypeError:
        yield f"tls.key: {tls.key} is protected by a pass phrase; give the key without one"
        return
    except ValueError:
        yield f"tls.key: {tls.key} has no private key in PEM form; give the key of the certificate"
        return
    if not certificates:
        return
    if certificates[0].public_key() != key.public_key():
        yield f"tls.key: {tls.key} is not the key of {tls.certificate}; give the two files that were made together"
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(tls.certificate, tls.key, password="")  # a key with a pass phrase must not ask the terminal
    except (ssl.SSLError, OSError, ValueError) as exc:
        yield f"tls.certificate: OpenSSL refuses {tls.certificate} ({_words_of(exc)}); make a new certificate and key"


def refused(settings: Settings, now: datetime | None = None) -> Iterator[str]:
    """Reasons for which others refuse this node's certificate, each with the remedy: copies can then be placed nowhere."""
    tls = settings.tls
    if tls is None or not (found := _read(tls.certificate)):
        return
    own, at = found[0], now or datetime.now(UTC)
    if own.not_valid_after_utc <= at:
        ended = _shown(own.not_valid_after_utc)
        yield f"tls.certificate expired at {ended}: peers and clients refuse it; renew it (init --renew), then SIGHUP"
    elif own.not_valid_before_utc > at:
        yield f"tls.certificate is not valid before {_shown(own.not_valid_before_utc)}: correct this machine's clock, or make a new one"
    elif tls.peer_authority is not None and (reason := _refusal_of_peers(settings, tls)):
        yield f"tls.certificate: {reason}; have tls.peer_authority sign a certificate with the name {settings.server.name} (init --renew)"


def doubts(settings: Settings, now: datetime | None = None) -> Iterator[str]:
    """What will make others refuse it, or may."""
    tls = settings.tls
    if tls is None or not (found := _read(tls.certificate)):
        return
    own, at = found[0], now or datetime.now(UTC)
    if at < own.not_valid_after_utc < at + CERTIFICATE_LEFT_MIN:
        yield f"tls.certificate ends at {_shown(own.not_valid_after_utc)}; peers refuse it from then on: renew it, then SIGHUP"
    if tls.peer_authority is None and settings.server.name not in _names(own):
        listed = ", ".join(_names(own)) or "none"
        yield f"tls.certificate does not have {settings.server.name} among its DNS names ({listed}); make one that does"
    if older := refused_by_newer(settings, at):
        key, text, remedy = older
        yield f"{key}: {text}; {remedy}"


def refused_by_newer(settings: Settings, at: datetime | None = None) -> tuple[str, str, str] | None:
    """Why a program under a newer Python refuses this node's certificate, although nodes accept it.

    Shapes: the key at fault, the reason, the remedy.
    """
    tls = settings.tls
    if tls is None or tls.peer_authority is None or next(refused(settings, at), ""):
        return None
    reason = _reason_of_peers(settings, tls, is_strict=True)
    if not reason:
        return None
    own = _read(tls.certificate)[0]
    signers = [one for one in _read(tls.peer_authority) if one.subject == own.issuer and _has_signed(one, own)]
    if any(map(_is_modern, signers)):
        return "tls.certificate", f"is refused by Python 3.13 and later: {reason}", NEW_CERTIFICATE
    return "tls.peer_authority", f"this authority is refused by Python 3.13 and later: {reason}", NEW_AUTHORITY


def handshake_failure(serving: ssl.SSLContext, asking: ssl.SSLContext, name: str) -> str:
    """Why a handshake of both contexts in memory fails, in the words of OpenSSL; "" if it succeeds, in both directions."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = asking.wrap_bio(to_client, to_server, server_hostname=name)
    server = serving.wrap_bio(to_server, to_client, server_side=True)
    steps: list[Callable[[], object]] = [client.do_handshake, server.do_handshake]
    try:
        for _ in range(10):  # a handshake of TLS 1.3 takes three turns
            for step in tuple(steps):
                try:
                    step()
                    steps.remove(step)
                except ssl.SSLWantReadError:
                    pass
    except ssl.SSLError as error:
        return _words_of(error)
    return "it did not end" if steps else ""


def _refusal_of_peers(settings: Settings, tls: Tls) -> str:
    """Why a peer with the same authority refuses it; "" if none does."""
    certificate, name = _read(tls.certificate)[0], settings.server.name
    if name not in _names(certificate):
        return f"{name} is not among its DNS names ({', '.join(_names(certificate)) or 'none'}), so that peers refuse it"
    reason = _reason_of_peers(settings, tls)
    return f"a peer with the same peer_authority refuses it ({reason})" if reason else ""


def _reason_of_peers(settings: Settings, tls: Tls, *, is_strict: bool = False) -> str:
    """Of OpenSSL. `is_strict`: by all of RFC 5280, as Python 3.13 and later do unless told otherwise."""
    serving, asking = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for context in (serving, asking):
        context.load_cert_chain(tls.certificate, tls.key)
        context.load_verify_locations(tls.peer_authority)
        context.verify_flags &= ~ssl.VerifyFlags.VERIFY_X509_STRICT
        if is_strict:
            context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_STRICT
    serving.verify_mode = ssl.CERT_REQUIRED
    return handshake_failure(serving, asking, settings.server.name)


def _has_signed(authority: x509.Certificate, certificate: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _is_modern(authority: x509.Certificate) -> bool:
    """Whether it says what RFC 5280 4.2.1 demands of one: that it is one, critically, that it signs certificates, and its key's name."""
    try:
        extensions = authority.extensions
        constraints, usage = (extensions.get_extension_for_class(one) for one in (x509.BasicConstraints, x509.KeyUsage))
        extensions.get_extension_for_class(x509.SubjectKeyIdentifier)
    except (x509.ExtensionNotFound, x509.DuplicateExtension, ValueError):
        return False
    return constraints.critical and isinstance(usage.value, x509.KeyUsage) and usage.value.key_cert_sign


def _words_of(error: Exception) -> str:
    said = getattr(error, "verify_message", "") or getattr(error, "reason", "") or getattr(error, "strerror", "")
    return str(said).replace("_", " ").lower() or "no reason is given"


def _certificates(pem: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError:
        return []


def _read(path: Path) -> list[x509.Certificate]:
    try:
        return _certificates(path.read_bytes())
    except OSError:
        return []  # `unusable` has reported it


def _names(certificate: x509.Certificate) -> list[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value.get_values_for_type(x509.DNSName)
    except x509.ExtensionNotFound:
        return []
    return [name.lower() for name in names]


def _shown(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M} UTC"
