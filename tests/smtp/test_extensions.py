"""The table of extensions in docs/mtas.md: complete, with a test for each row that is there."""

import re
from pathlib import Path

import trustme

from tests.kit.receiving import PEER, receiving
from tests.tidy.house import NAMED_TEST, ROOT, is_there, listed_ids

NEEDS_NO_COPY = {"ENHANCEDSTATUSCODES", "XSHADOW", "VRFY, EXPN, HELP"}


def rows() -> dict[str, list[str]]:
    """The cells of each row, by its extension."""
    page = (ROOT / "docs" / "mtas.md").read_text(encoding="utf-8")
    lines = page.partition("\n## Extensions\n")[2].partition("\n## ")[0].splitlines()
    table = [re.split(r" *\| *", line)[1:-1] for line in lines if line.startswith("| ")][1:]
    return {cells[0]: cells[1:] for cells in table}


def test_each_extension_says_what_becomes_of_it_and_names_tests_that_exist() -> None:
    table = rows()

    assert len(table) >= 13
    for name, (source, taken, sent, promoted, tests) in table.items():
        assert taken, name
        assert sent, name
        assert bool(promoted) or name in NEEDS_NO_COPY, name
        assert not source.isdecimal() or f"rfc-{source}" in listed_ids(), name
        found = NAMED_TEST.findall(tests)
        assert found, name
        assert [] == [f"{path}::{test}" for path, test in found if not is_there(ROOT / path, test)]


async def test_whatever_is_offered_has_a_row(tmp_path: Path) -> None:
    issued = trustme.CA().issue_cert("a.example")
    issued.private_key_and_cert_chain_pem.write_to_path(tmp_path / "a.pem")
    tls = {"certificate": tmp_path / "a.pem", "key": tmp_path / "a.pem"}
    async with receiving(tmp_path, tls=tls, xclient_from=["127.0.0.1"], **PEER) as station:
        client = await station.connect()
        lines = (await client.ask("EHLO c.example")).split("\n")[1:]

    offered = {line[4:].split(" ")[0] for line in lines}
    assert {"STARTTLS", "XSHADOW", "CHUNKING", "XFORWARD"} <= offered
    assert offered <= {word for name in rows() for word in re.split(", ?", name)}
