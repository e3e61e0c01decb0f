"""A living cluster gets another certificate authority, in three steps: docs/setup.md "A new authority".

First all nodes trust both authorities, then they get certificates of the new one, then they trust it alone. So at each moment every node
trusts every certificate in use, in whatever order the files of a step reach the nodes. What was done is told by the files themselves:

| authority.pem and .key | sign certificates |
| authority.next.pem and .key | trusted already; the next step makes it the authority that signs |
| authority.former.pem and .key | still trusted, sign nothing any more; the last step deletes them |
"""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization

from shadowrelay.model.values import dataclass
from shadowrelay.settings.authority import Authority, make_authority, read_authority, write_file

PRIVATE, READABLE = 0o600, 0o644


class AuthorityStep(StrEnum):
    """What a call of `init --renew --authority` does."""

    TRUST = "1 of 3: all nodes are to trust both authorities"
    SIGN = "2 of 3: all nodes get certificates of the new authority"
    DROP = "3 of 3: the former authority is not trusted any more"


@dataclass(frozen=True, slots=True)
class Authorities:
    """Shapes: `trusted` by all nodes, the one that signs first; `dropped` no longer."""

    signing: Authority
    trusted: tuple[x509.Certificate, ...]
    dropped: tuple[x509.Certificate, ...] = ()


def pair(directory: Path, role: str = "") -> tuple[Path, Path]:
    """Certificate and key of the authority in this role: "", "next" or "former"."""
    stem = f"authority.{role}" if role else "authority"
    return directory / f"{stem}.pem", directory / f"{stem}.key"


def put(authority: Authority, files: tuple[Path, Path]) -> None:
    """The certificate last: it says that both are there."""
    certificate, key = files
    write_file(key, authority.key_pem, PRIVATE)
    write_file(certificate, authority.pem, READABLE)


def read_authorities(directory: Path) -> Authorities:
    """Raises: ConfigurationError naming the file and the remedy."""
    signing = read_authority(*pair(directory))
    others = (pair(directory, role)[0] for role in ("next", "former"))
    found = (x509.load_pem_x509_certificate(path.read_bytes()) for path in others if path.exists())
    return Authorities(signing, (signing.certificate, *found))


def next_step(directory: Path, certificates: Iterable[Path]) -> AuthorityStep:
    """By what the steps before left. `certificates` are those of the nodes: as long as one is not signed anew, that step is not over."""
    if pair(directory, "next")[0].exists():
        return AuthorityStep.SIGN
    if not pair(directory, "former")[0].exists():
        return AuthorityStep.TRUST
    signing = read_authority(*pair(directory)).certificate
    return AuthorityStep.DROP if all(_is_signed(path, signing) for path in certificates if path.exists()) else AuthorityStep.SIGN


def take(step: AuthorityStep, directory: Path, name: str, life: timedelta) -> Authorities:
    """Leave the files as after this step; may be called again if it was interrupted. Raises: ConfigurationError, OSError."""
    current, coming, former = pair(directory), pair(directory, "next"), pair(directory, "former")
    if step is AuthorityStep.TRUST:
        read_authority(*current)  # can be read
        # another name than the former one's: OpenSSL looks an authority up by its name
        put(make_authority(f"{name} of {datetime.now(UTC):%Y-%m-%d %H:%M:%S}", life), coming)
    elif step is AuthorityStep.SIGN and coming[0].exists():
        if not former[0].exists():
            put(read_authority(*current), former)
        put(read_authority(*coming), current)
        _delete(coming)
    elif step is AuthorityStep.DROP:
        dropped = x509.load_pem_x509_certificate(former[0].read_bytes())
        _delete(former)
        left = read_authorities(directory)
        return Authorities(left.signing, left.trusted, (dropped,))
    return read_authorities(directory)


def trusted_pem(existing: bytes, authorities: Authorities) -> bytes:
    """The file `peers.pem`: what it had, too, if somebody added an authority, except what is dropped or has ended."""
    try:
        found = x509.load_pem_x509_certificates(existing)
    except ValueError:
        found = []
    now = datetime.now(UTC)
    others = [one for one in found if one not in (*authorities.trusted, *authorities.dropped) and one.not_valid_after_utc > now]
    return b"".join(one.public_bytes(serialization.Encoding.PEM) for one in (*authorities.trusted, *others))


def trusts_all(existing: bytes, authorities: Authorities) -> bool:
    """Whether this `peers.pem` has every authority that is to be trusted."""
    try:
        return set(authorities.trusted) <= set(x509.load_pem_x509_certificates(existing))
    except ValueError:
        return False


def _is_signed(certificate: Path, authority: x509.Certificate) -> bool:
    try:
        x509.load_pem_x509_certificates(certificate.read_bytes())[0].verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _delete(files: tuple[Path, Path]) -> None:
    certificate, key = files
    key.unlink(missing_ok=True)
    certificate.unlink(missing_ok=True)
