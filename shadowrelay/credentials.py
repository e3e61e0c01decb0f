"""Reads the files that a route names: authorities, certificates, secrets. docs/operations.md "TLS to next hops", "Login at next hops"

Used by `check`, which reports what cannot be used, and by the sessions themselves: secrets are read whenever one is needed, the others
again after SIGHUP. No error here has a secret in it.
"""

import hashlib
import ipaddress
import os
import ssl
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from shadowrelay.bounded import FILES
from shadowrelay.model.protection import Login, Protection, TlsMode, TlsVersion
from shadowrelay.model.replies import ConfigurationError
from shadowrelay.model.routing import HostPort
from shadowrelay.model.values import dataclass

_VERSIONS = {TlsVersion.TLS_1_2: ssl.TLSVersion.TLSv1_2, TlsVersion.TLS_1_3: ssl.TLSVersion.TLSv1_3}


def certificates_of(protection: Protection) -> tuple[Path, ...]:
    """The files that `client_context` reads."""
    authority = protection.authority if protection.tls is TlsMode.VERIFIED else None
    return tuple(file for file in (authority, protection.certificate, protection.key) if file is not None)


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


SECRET_OCTETS_MAX = 16 * 1024
CREDENTIALS_DIRECTORY = "CREDENTIALS_DIRECTORY"  # systemd.exec(5)


@dataclass(frozen=True, slots=True)
class SecretPlace:
    """Where a secret is. Shapes: one of `file` and `credential` is set; `key` and `credential_key` are those of the configuration."""

    key: str
    file: Path | None
    credential_key: str
    credential: str

    @property
    def is_given(self) -> bool:
        """Whether the configuration names one."""
        return self.file is not None or bool(self.credential)

    def path(self) -> Path:
        """Raises: ConfigurationError if systemd has passed no credentials."""
        if self.file is not None:
            return self.file
        directory = os.environ.get(CREDENTIALS_DIRECTORY, "")
        if not directory:
            raise ConfigurationError(
                f"{self.credential_key}: systemd has passed no credentials; write LoadCredential={self.credential}:PATH into the unit, or "
                f"use {self.key}"
            )
        return Path(directory) / self.credential

    def files(self) -> tuple[Path]:
        """What `read` reads. Raises: ConfigurationError, as `path`."""
        return (self.path(),)

    def read(self) -> str:
        """The secret, without the end of its line. Raises: ConfigurationError with key and remedy, without a part of the secret."""
        path, key = self.path(), self.key if self.file is not None else self.credential_key
        try:
            with path.open("rb") as opened:
                mode = os.fstat(opened.fileno()).st_mode
                octets = opened.read(SECRET_OCTETS_MAX + 1)
        except OSError as error:
            raise ConfigurationError(f"{key}: {path} cannot be read ({error.strerror}); give a file that this user may read") from error
        if not stat.S_ISREG(mode) or mode & 0o027:
            who = "others may read or change it" if mode & 0o007 else "its group may change it" if stat.S_ISREG(mode) else "it is no file"
            raise ConfigurationError(
                f"{key}: {path} is no place for a secret: {who} (mode {stat.S_IMODE(mode):04o}); chmod u=rw,g=r,o= {path}"
            )
        try:
            text = octets.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError:
            text = ""
        if not text or len(octets) > SECRET_OCTETS_MAX or not text.isprintable():
            raise ConfigurationError(f"{key}: {path} has no secret in it; write one line of text, at most {SECRET_OCTETS_MAX} octets")
        return text


def secret_of(login: Login) -> SecretPlace:
    """Of the password."""
    return SecretPlace("auth.secret_file", login.secret_file, "auth.credential", login.credential)


def client_secret_of(login: Login) -> SecretPlace:
    """Of the application at the token endpoint."""
    token = login.token
    assert token is not None
    return SecretPlace("auth.token.client_secret_file", token.client_secret_file, "auth.token.client_credential", token.client_credential)


def refresh_token_of(login: Login) -> SecretPlace:
    """Of the refresh token."""
    token = login.token
    assert token is not None
    return SecretPlace("auth.token.refresh_token_file", token.refresh_token_file, "auth.token.refresh_credential", token.refresh_credential)


def places_of(login: Login) -> Iterator[SecretPlace]:
    """All that it names."""
    places = [secret_of(login)] if login.token is None else [client_secret_of(login), refresh_token_of(login)]
    return (place for place in places if place.is_given)


NO_RIGHTS = "none"
Demands = tuple[Sequence[str], Sequence[HostPort], Protection]
"""Of one route: the patterns of its recipients, its next hops, and what it demands."""


def digests(routes: Sequence[Demands], boundary: str) -> Mapping[str, str]:
    """What peers compare: `routes_tls` and `routes_auth`, of the routes that demand anything. Nobody can get a secret out of it: of a
    password there are forty bits of a slow hash, which very many passwords have. Files that cannot be read, or hang, count as
    such.
    """
    tls, logins = hashlib.sha256(), hashlib.sha256()
    has_login = False
    for patterns, hops, protection in sorted(routes, key=lambda route: (sorted(route[0]), str(route[1]))):
        where = repr((sorted(patterns), [(hop.host, hop.port, hop.scheme) for hop in hops]))
        authority = b"" if protection.authority is None else _octets(protection.authority)
        tls.update(repr((where, protection.tls.value, protection.names, protection.minimum_version.value, authority)).encode())
        if (login := protection.login) is not None:
            has_login = True
            token = None if login.token is None else login.token.model_dump(exclude={"authority"}, mode="json")
            paths = ("client_secret_file", "refresh_token_file", "client_credential", "refresh_credential")
            source = None if token is None else {name: bool(value) if name in paths else value for name, value in token.items()}
            secrets = [
                _slow_hash(place, boundary, login.user) for place in places_of(login) if not place.key.endswith("refresh_token_file")
            ]
            logins.update(repr((where, login.user, login.mechanism.value, source, secrets)).encode())
    return {
        "routes_tls": tls.hexdigest()[:16] if routes else NO_RIGHTS,
        "routes_auth": logins.hexdigest()[:10] if has_login else NO_RIGHTS,
    }


def _octets(path: Path) -> bytes:
    try:
        return hashlib.sha256(FILES.look((path,), path.read_bytes)).digest()
    except OSError:  # TimeoutError is one
        return b"unreadable"


def _slow_hash(place: SecretPlace, boundary: str, user: str) -> bytes:
    try:
        secret = FILES.look(place.files(), place.read)
    except (ConfigurationError, TimeoutError):
        return b"unreadable"
    return hashlib.scrypt(secret.encode(), salt=f"shadowrelay {boundary} {user}".encode(), n=2**14, r=8, p=1, dklen=5)
