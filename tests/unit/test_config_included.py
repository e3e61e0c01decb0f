"""A file that several node files have in common. docs/reference.md "A file in common"."""

import hashlib
import re
from pathlib import Path

import pytest

from shadowrelay.model.replies import ConfigurationError
from shadowrelay.settings.configuration import LoadedSettings, address_and_rights, digest_of, load
from shadowrelay.settings.places import exposed

COMMON = """\
[server]
site = "east"
failure_domains = ["rack7"]

[transport]
shadow_timeout = "3s"

[[peers]]
name = "mx1.west.example"
site = "west"
address = "mx1.west.example:2525"

[tls]
certificate = "common.pem"
key = "node.key"
peer_authority = "peers.pem"
"""
OWN = """\
include = "../machine.toml"

[server]
name = "mx1-1.east.example"
data_directory = "data"

[[peers]]
name = "mx1-2.east.example"
site = "east"
address = "127.0.0.1:2565"
"""


def written(directory: Path, own: str = OWN, common: str = COMMON) -> Path:
    (directory / "1").mkdir(exist_ok=True)
    (directory / "machine.toml").write_text(common)
    path = directory / "1" / "node.toml"
    path.write_text(own)
    return path


def loaded(directory: Path, own: str = OWN, common: str = COMMON, environ: dict[str, str] | None = None) -> LoadedSettings:
    return load(written(directory, own, common.partition("[tls]")[0]), environ or {})


def problems(path: Path) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        load(path, {})
    return str(caught.value).replace(f"{path.parent.parent}/", "").splitlines()


def test_keys_of_both_hold_and_tables_of_lists_follow_each_other(tmp_path: Path) -> None:
    found = loaded(tmp_path, OWN + "[transport]\nshadow_copies = 2\n").settings

    assert ("mx1-1.east.example", "east", ("rack7",)) == (found.server.name, found.server.site, found.server.failure_domains)
    assert (3.0, 2) == (found.transport.shadow_timeout.total_seconds(), found.transport.shadow_copies)
    assert ["mx1.west.example", "mx1-2.east.example"] == [peer.name for peer in found.peers]


def test_the_own_file_counts_before_the_common_one_and_a_variable_before_both(tmp_path: Path) -> None:
    own = OWN.replace("[server]", '[server]\nfailure_domains = ["rack8"]') + '[transport]\nshadow_timeout = "4s"\n'
    environ = {"SHADOWRELAY_TRANSPORT__SHADOW_TIMEOUT": "5s", "SHADOWRELAY_PEERS__1__SITE": "north"}

    assert (("rack8",), 4.0) == (
        (one := loaded(tmp_path, own).settings).server.failure_domains,
        one.transport.shadow_timeout.total_seconds(),
    )
    found = loaded(tmp_path, own, environ=environ).settings
    assert (5.0, ["west", "north"]) == (found.transport.shadow_timeout.total_seconds(), [peer.site for peer in found.peers])


def test_a_path_is_relative_to_the_file_in_which_it_stands(tmp_path: Path) -> None:
    path = written(tmp_path, OWN + '[tls]\ncertificate = "own.pem"\n')
    words = problems(path)
    common = COMMON.replace("[tls]", '[tracking]\ndirectory = "tracking"\n\n[admin]\ntoken_file = "token"\n\n[tls]')
    found = loaded(tmp_path, OWN + '[admin]\nread_only_token_file = "token"\n', common).settings

    assert [("1/node.toml:12", "1/own.pem"), ("machine.toml:15", "node.key"), ("machine.toml:16", "peers.pem")] == [
        (word.partition(": ")[0], re.findall(r"[\w./]+", word.partition(": tls.")[2])[1]) for word in words
    ]
    assert (tmp_path / "1/data", tmp_path / "tracking") == (found.server.data_directory, found.tracking.directory)
    assert (tmp_path / "token", tmp_path / "1/token") == (found.admin.token_file, found.admin.read_only_token_file)


def test_a_mistake_is_named_with_its_file_and_line(tmp_path: Path) -> None:
    path = written(
        tmp_path, OWN.replace("127.0.0.1:2565", "127.0.0.1:port"), COMMON.partition("[tls]")[0].replace("3s", "3").replace(":2525", ":no")
    )

    assert ["machine.toml:6: transport.shadow_timeout", "machine.toml:11: peers[0].address", "1/node.toml:10: peers[1].address"] == [
        ": ".join(line.split(": ")[:2]) for line in problems(path)
    ]


@pytest.mark.parametrize(
    ("own", "common", "said"),
    [
        (
            OWN.replace("machine", "other"),
            COMMON,
            "other.toml: cannot be read (No such file or directory); name an existing file with include",
        ),
        (OWN.replace('"../machine.toml"', "7"), COMMON, "1/node.toml: include: 7 is not the name of a file; write it in quotes"),
        (OWN, f'include = "1/node.toml"\n{COMMON}', "machine.toml: include: 1/node.toml includes this file, which can include no other"),
        (OWN, COMMON.replace('"east"', "east"), "machine.toml: is not valid TOML"),
    ],
    ids=["missing", "no name", "in a circle", "no TOML"],
)
def test_what_cannot_be_included_is_refused(tmp_path: Path, own: str, common: str, said: str) -> None:
    (line,) = problems(written(tmp_path, own, common))

    assert line.startswith(said)


def test_a_change_of_either_file_is_seen_and_others_may_write_neither(tmp_path: Path) -> None:
    before = loaded(tmp_path)
    assert before.digest == digest_of(before.path) != hashlib.sha256(before.path.read_bytes()).hexdigest()
    assert [before.path, tmp_path / "machine.toml"] == list(before.files)

    (tmp_path / "machine.toml").chmod(0o666)
    assert [f"--config: others may change {tmp_path}/machine.toml (mode 0666): chmod go-w {tmp_path}/machine.toml"] == [
        line for line in exposed(before.settings, *before.files) if line.startswith("--config: others")
    ]

    (tmp_path / "machine.toml").write_text("")
    assert before.digest != digest_of(before.path)


def test_a_command_finds_its_node_in_spite_of_a_mistake_in_the_common_file(tmp_path: Path) -> None:
    path = written(tmp_path, OWN, COMMON.partition("[tls]")[0].replace("[transport]", "[transport"))
    settings, mistakes = address_and_rights(path)

    assert ("mx1-1.east.example", "east") == (settings.server.name, settings.server.site)
    assert "machine.toml: is not valid TOML" in mistakes
