"""Certificates as `init` made them until Python 3.13 refused such ones: neither the authority nor a node's says what its key is for."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from shadowrelay.settings.authority import private_pem

PEM = serialization.Encoding.PEM


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(subject: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(_name("mail nodes"))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=365))
    )


def write_old_certificates(directory: Path, names: Iterable[str]) -> None:
    """In the place of those that `init` wrote into this directory."""
    key = ec.generate_private_key(ec.SECP256R1())
    authority = (
        _builder("mail nodes", key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    (directory / "authority.pem").write_bytes(authority.public_bytes(PEM))
    (directory / "authority.key").write_bytes(private_pem(key))
    for name in names:
        own = ec.generate_private_key(ec.SECP256R1())
        certificate = (
            _builder(name, own)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        (directory / name / "node.pem").write_bytes(certificate.public_bytes(PEM))
        (directory / name / "node.key").write_bytes(private_pem(own))
        (directory / name / "peers.pem").write_bytes(authority.public_bytes(PEM))
