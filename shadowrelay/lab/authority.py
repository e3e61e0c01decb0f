"""A certificate authority that lives as long as the lab: it signs the names of its nodes, and nobody else trusts it."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LIFE = timedelta(days=90)
CLOCKS_APART = timedelta(hours=1)


def write_certificates(directory: Path, names: Iterable[tuple[str, str]]) -> None:
    """For each (folder, DNS name): `node.pem`, `node.key` and `authority.pem` in that folder of `directory`.

    The keys are readable by everybody, whatever the umask: in the container another user reads them than the one who made
    them. They open nothing but this lab.
    """
    _make(directory)
    authority_key = ec.generate_private_key(ec.SECP256R1())
    subject = _named("shadowrelay lab authority")
    authority = (
        _builder(subject, subject, authority_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    for folder, name in names:
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = (
            _builder(_named(name), subject, key.public_key())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
            .sign(authority_key, hashes.SHA256())
        )
        place = directory / folder
        _make(place)
        _write(place / "node.pem", certificate.public_bytes(serialization.Encoding.PEM))
        _write(place / "authority.pem", authority.public_bytes(serialization.Encoding.PEM))
        private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        _write(place / "node.key", private)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCKS_APART)
        .not_valid_after(now + LIFE)
    )


def _make(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(0o755)


def _write(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    path.chmod(0o644)
