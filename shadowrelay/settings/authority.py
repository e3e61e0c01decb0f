"""A small certificate authority for nodes: they prove their names to each other with its certificates. RFC 5280; docs/setup.md
"Certificates".

It has one key, signs nothing but certificates of nodes, and is trusted only by them.
"""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from shadowrelay.model.replies import ConfigurationError
from shadowrelay.model.values import dataclass

CLOCKS_APART = timedelta(hours=1)  # a certificate is valid at once, also for a node whose clock is slow


@dataclass(frozen=True, slots=True)
class Authority:
    """Shapes: `certificate` is trusted by the nodes as `tls.peer_authority`; `key` never leaves the machine where it was made."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        return private_pem(self.key)


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """PKCS #8, not encrypted."""
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def make_authority(name: str, life: timedelta) -> Authority:
    """A new one, self-signed, that may not sign other authorities."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    certificate = (
        _builder(subject, subject, key.public_key(), life)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(key_cert_sign=True, crl_sign=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return Authority(certificate, key)


def read_authority(certificate: Path, key: Path) -> Authority:
    """One that was made before. Raises: ConfigurationError naming the file and the remedy."""
    try:
        authority = x509.load_pem_x509_certificate(certificate.read_bytes())
    except (OSError, ValueError) as exc:
        raise ConfigurationError(f"{certificate} cannot be read ({_reason(exc)}); restore it, or begin in another directory") from exc
    try:
        private = serialization.load_pem_private_key(key.read_bytes(), None)
    except (OSError, ValueError, TypeError) as exc:
        raise ConfigurationError(f"{key} cannot be read ({_reason(exc)}); restore it, or begin in another directory") from exc
    if not isinstance(private, ec.EllipticCurvePrivateKey) or private.public_key() != authority.public_key():
        raise ConfigurationError(f"{key} is not the key of {certificate}; restore the right one, or begin in another directory")
    if authority.not_valid_after_utc <= datetime.now(UTC):
        raise ConfigurationError(f"{certificate} has ended; move it and its key away, and give all nodes new certificates by --renew")
    return Authority(authority, private)


def signed_pems(authority: Authority, name: str, life: timedelta) -> tuple[bytes, bytes]:
    """A new certificate of the node `name` and its key, as client and as server. It ends with the authority at the latest."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])  # RFC 5280: at most 64; the DNS name is what counts
    life = min(life, authority.certificate.not_valid_after_utc - datetime.now(UTC))
    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    certificate = (
        _builder(subject, authority.certificate.subject, key.public_key(), life)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(digital_signature=True), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .add_extension(signer, critical=False)
        .sign(authority.key, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM), private_pem(key)


def write_file(path: Path, data: bytes, mode: int) -> None:
    """Whole or not at all, with `mode` whatever the umask: a key is never readable by others, not even for a moment."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.unlink(missing_ok=True)
    try:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            os.fchmod(file.fileno(), mode)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, life: timedelta) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCKS_APART)
        .not_valid_after(now + life)
    )


def _key_usage(**wanted: bool) -> x509.KeyUsage:
    """RFC 5280 4.2.1.3. Python 3.13 and later refuse an authority with a limited path that does not say that it signs certificates."""
    uses = (
        "digital_signature",
        "content_commitment",
        "key_encipherment",
        "data_encipherment",
        "key_agreement",
        "key_cert_sign",
        "crl_sign",
    )
    return x509.KeyUsage(**dict.fromkeys((*uses, "encipher_only", "decipher_only"), False) | wanted)


def _reason(exc: Exception) -> str:
    return exc.strerror or "unknown" if isinstance(exc, OSError) else "not PEM of that kind"
