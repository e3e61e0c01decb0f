"""Sessions to nodes accept what earlier versions made, under every Python, and still refuse strangers and other names."""

import ssl
from pathlib import Path

import pytest

from shadowrelay.settings.certificates import handshake_failure
from shadowrelay.trust import trusting
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
