"""Runs of `shadowrelay init`, and what it wrote."""

from pathlib import Path

from cryptography import x509
from typer.testing import CliRunner, Result

from shadowrelay.cli.main import app

EAST, WEST, SOUTH = "mx1.east.example,east,192.0.2.11", "mx1.west.example,west,198.51.100.11:2525", "mx1.south.example,south"
MAIL = ("--accept", "corp.example", "--next-hop", "store.corp.example")


def run(directory: Path, *words: str) -> Result:
    return CliRunner().invoke(app, ["init", str(directory), *words])


def nodes(*all_nodes: str) -> list[str]:
    return [word for node in all_nodes for word in ("--node", node)]


def certificate(directory: Path, name: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate((directory / name / "node.pem").read_bytes())
