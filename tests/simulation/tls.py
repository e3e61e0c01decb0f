"""Certificates by which the nodes of a world prove their names to each other, in place of their addresses."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import trustme


def tls_of(directory: Path, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """By name: what its settings have more."""
    authority = _authority()
    authority.cert_pem.write_to_path(directory / "peers.pem")
    found = {}
    for name in names:
        own, private_key = _issued(name)
        certificate, key = directory / f"{name}.pem", directory / f"{name}.key"
        certificate.write_bytes(own)
        key.write_bytes(private_key)
        found[name] = {"tls": {"certificate": str(certificate), "key": str(key), "peer_authority": str(directory / "peers.pem")}}
    return found


@cache
def _authority() -> trustme.CA:
    return trustme.CA()


@cache
def _issued(name: str) -> tuple[bytes, bytes]:
    """Certificate and key: made once for all worlds of a run."""
    issued = _authority().issue_cert(name)
    return b"".join(one.bytes() for one in issued.cert_chain_pems), issued.private_key_pem.bytes()
