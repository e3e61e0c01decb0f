"""Sessions to nodes accept what earlier versions made, under every Python, and still refuse strangers and other names."""

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from shadowrelay.settings.certificates import handshake_failure
from shadowrelay.trust import AUTHORITY_REVOKED, REVOKED, PeerTrust, chain_of, trusting
from tests.kit.init_runs import EAST, MAIL, WEST, nodes, run
from tests.kit.old_authority import write_old_certificates

NAME = "mx1.east.example"


@pytest.fixture
def serving(tmp_path: Path) -> ssl.SSLContext:
    run(tmp_path, *nodes(EAST, WEST), *MAIL)
    (tmp_path / "another.pem").write_bytes((tmp_path / "authority.pem").read_bytes())
    write_old_certificates(tmp_path, (NAME, "mx1.west.example"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / NAME / "node.pem", tmp_path / NAME / "node.key")
    return context


def test_an_authority_of_an_earlier_version_is_trusted(serving: ssl.SSLContext, tmp_path: Path) -> None:
    strict = trusting(tmp_path / "authority.pem")
    strict.verify_flags |= ssl.VerifyFlags.VERIFY_X509_STRICT  # the default of Python 3.13 and later

    assert "" == handshake_failure(serving, trusting(tmp_path / "authority.pem"), NAME)
    assert "path length given without key usage keycertsign" == handshake_failure(serving, strict, NAME)


def test_another_name_or_authority_is_refused(serving: ssl.SSLContext, tmp_path: Path) -> None:
    assert handshake_failure(serving, trusting(tmp_path / "authority.pem"), "mx1.west.example").startswith("hostname mismatch")
    assert "" != handshake_failure(serving, trusting(tmp_path / "another.pem"), NAME)


# an authority between the one in tls.peer_authority and the bearer


def shaken_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Both ends of a session in memory."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        server.wrap_bio(there, back, server_side=True),
        client.wrap_bio(back, there, server_hostname=NAME),
    )
    for _ in range(4):
        for end in ends[::-1]:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return ends


class Chained:
    """A root, an authority below it, and a node whose certificate that one signed. Both ends of a session show it."""

    def __init__(self, top: Path) -> None:
        self.root = trustme.CA()
        self.between = self.root.create_child_ca()
        self.node = self.between.issue_cert(NAME)
        self.authority, self.revoked = top / "peers.pem", top / "revoked.pem"
        self.root.cert_pem.write_to_path(str(self.authority))
        server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), trusting(self.authority)
        server.load_verify_locations(self.authority)
        server.verify_mode = ssl.CERT_REQUIRED
        for context in (server, client):
            self.node.configure_cert(context)
        self.ends = shaken_hands(server, client)

    def trust(self, revoked: bytes = b"") -> PeerTrust:
        self.revoked.write_bytes(revoked)
        return PeerTrust.read(self.authority, self.revoked)

    def refused(self, revoked: bytes) -> list[str]:
        """What both ends say of each other."""
        return [self.trust(revoked).refusal(chain_of(end)) for end in self.ends]


def listed(issuer: trustme.CA, certificate: x509.Certificate) -> bytes:
    """A revocation list."""
    now = datetime.now(UTC)
    key = serialization.load_pem_private_key(issuer.private_key_pem.bytes(), None)
    entry = x509.RevokedCertificateBuilder().serial_number(certificate.serial_number).revocation_date(now).build()
    builder = x509.CertificateRevocationListBuilder().issuer_name(certificate.issuer).last_update(now)
    built = builder.next_update(now + timedelta(days=1)).add_revoked_certificate(entry)
    return built.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)  # type: ignore[arg-type]


def test_who_has_a_certificate_of_a_revoked_authority_is_no_peer(tmp_path: Path) -> None:
    chained = Chained(tmp_path)
    between = x509.load_pem_x509_certificate(chained.between.cert_pem.bytes())
    own = chained.node.cert_chain_pems[0].bytes()

    assert [3, 3] == [len(chain_of(end)) for end in chained.ends]
    assert ["", ""] == chained.refused(b"# nobody\n")
    assert [REVOKED] * 2 == chained.refused(own)
    for ways in (
        chained.between.cert_pem.bytes(),
        f"{between.fingerprint(hashes.SHA256()).hex()}\n".encode(),
        listed(chained.root, between),
    ):
        assert [AUTHORITY_REVOKED] * 2 == chained.refused(ways)


def test_an_open_session_stays_as_long_as_some_authority_has_signed_its_chain(tmp_path: Path) -> None:
    chained = Chained(tmp_path)
    before, shown = chained.trust(), chain_of(chained.ends[0])
    another = trustme.CA()
    chained.authority.write_bytes(chained.between.cert_pem.bytes())

    assert "" == chained.trust().refusal_of_session(shown, before)
    chained.authority.write_bytes(another.cert_pem.bytes())
    assert chained.trust().refusal_of_session(shown, before).startswith("no authority in tls.peer_authority")
