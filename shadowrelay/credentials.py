"""Reads the files that a route names: authorities and certificates. docs/operations.md "TLS to next hops"

Used by `check`, which reports what cannot be used, and by the sessions themselves, which read the files again after SIGHUP.
"""

import ipaddress
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from shadowrelay.model.protection import Protection, TlsMode, TlsVersion
from shadowrelay.model.replies import ConfigurationError

_VERSIONS = {TlsVersion.TLS_1_2: ssl.TLSVersion.TLSv1_2, TlsVersion.TLS_1_3: ssl.TLSVersion.TLSv1_3}


def client_context(protection: Protection) -> ssl.SSLContext:
    """For sessions with this protection. Names are left to `refusal_of`, because OpenSSL compares one only.

    Raises: ConfigurationError that begins with the key, for files that cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED if protection.tls is TlsMode.VERIFIED else ssl.CERT_NONE
    context.minimum_version = _VERSIONS[protection.minimum_version]
    if protection.tls is TlsMode.VERIFIED:
        if protection.authority is None:
            context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        else:
            _load("tls_authority", protection.authority, lambda: context.load_verify_locations(cafile=protection.authority))
    if protection.certificate is not None:
        certificate, key = protection.certificate, protection.key
        # a key with a pass phrase must not ask the terminal
        _load("tls_certificate", certificate, lambda: context.load_cert_chain(certificate, key, password=""))
    return context


def _load(name: str, file: Path, load: Callable[[], None]) -> None:
    try:
        load()
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        said = getattr(error, "reason", "") or getattr(error, "strerror", "") or "it has no PEM that can be used"
        words = str(said).replace("_", " ").lower()
        raise ConfigurationError(
            f"{name}: {file} cannot be used ({words}); give a readable PEM file, with a certificate its key"
        ) from error


def refusal_of(protection: Protection, session: ssl.SSLObject, name: str) -> str:
    """Why the server at the other end, whose certificate was verified, is not the one that is meant; "" if it is. RFC 6125, RFC 9525."""
    certificate: Mapping[str, Any] = session.getpeercert() or {}
    wanted = protection.names or (name.rstrip("."),)
    found = [(kind, value) for kind, value in certificate.get("subjectAltName", ()) if kind in ("DNS", "IP Address")]
    if any(covers(value, one) if kind == "DNS" else _is_same_address(value, one) for kind, value in found for one in wanted):
        return ""
    names = ", ".join(sorted(value for _, value in found)) or "no name"
    return f"its certificate is for {names}, not for {' or '.join(wanted)}"


def covers(pattern: str, name: str) -> bool:
    """Whether a DNS name of a certificate is that of the server: a star stands for the whole first label, and nothing else."""
    pattern, name = pattern.lower().rstrip("."), name.lower().rstrip(".")
    if not pattern.startswith("*."):
        return pattern == name
    first, _, rest = name.partition(".")
    return bool(first) and pattern[2:] == rest and "." in rest and "*" not in rest


def _is_same_address(written: str, wanted: str) -> bool:
    try:
        return ipaddress.ip_address(written) == ipaddress.ip_address(wanted)
    except ValueError:
        return False
