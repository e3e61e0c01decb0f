"""Who stands where: what was shipped says it, a file of the operator wins, and nothing that is wrong there stops the report."""

import errno
import json
import os

import pytest

from shadowrelay.model.replies import ConfigurationError
from shadowrelay.sla.sites import (
    DamagedFile,
    Dropped,
    ExpectedLogs,
    Manifest,
    ServerSite,
    merged,
    read_manifests,
    read_servers,
    read_shipping,
    read_sites_file,
    write_servers,
    write_shipping,
)
from shadowrelay.sla.storage import located, written_whole

DROPPED = {"name": "MSGTRK2026112101-1.LOG", "bytes": 9, "rows": 1, "reason": "directory full", "at": "2026-11-21T10:00:00Z"}
SHIPPED = {"schema_version": 1, "server": "elsewhere", "site": "east", "boundary": "b", "files": [{"name": "MSGTRK2026112112-1.LOG"}]}


def test_each_directory_is_a_server_with_or_without_a_manifest(tmp_path):
    for name in ("mx1", "mx2", "mx3", ".hidden"):
        (tmp_path / name).mkdir()
    (tmp_path / "mx1" / "manifest.json").write_text(json.dumps(SHIPPED | {"dropped": [DROPPED]}))
    (tmp_path / "mx2" / "manifest.json").write_text('{"files": [{"na')
    (tmp_path / "note.txt").write_text("no server")

    manifests = read_manifests(str(tmp_path))

    dropped = (Dropped("mx1", DROPPED["name"], "directory full", DROPPED["at"]),)
    assert {"mx1": Manifest(ServerSite("east", "b"), ("MSGTRK2026112112-1.LOG",), dropped), "mx2": None, "mx3": None} == manifests
    assert {} == read_manifests(str(tmp_path / "nowhere"))


def test_the_operators_file_wins_over_manifests_and_these_over_what_was_known():
    manifests = {"a": Manifest(ServerSite("east", "b"), (), ()), "b": Manifest(ServerSite("west", "b"), (), ()), "c": None}

    servers = merged(
        {"a": ServerSite("old", ""), "c": ServerSite("north", ""), "d": ServerSite("gone", "")}, manifests, {"b": ServerSite("south", "x")}
    )

    assert {
        "a": ServerSite("east", "b"),
        "b": ServerSite("south", "x"),
        "c": ServerSite("north", ""),
        "d": ServerSite("gone", ""),
    } == servers


def test_sites_are_read_from_toml(tmp_path):
    file = tmp_path / "sites.toml"
    file.write_text('["mx1.east.example"]\nsite = "east"\nboundary = "example"\n[mx2]\nsite = "west"\n')

    assert {"mx1.east.example": ServerSite("east", "example"), "mx2": ServerSite("west")} == read_sites_file(file)


@pytest.mark.parametrize("text", ["[mx1]\nsight = 'east'", "mx1 = 'east'", "[mx1]\nsite = 3", "[mx1", "[mx1.east.example]\nsite='x'"])
def test_a_wrong_file_of_sites_is_an_error_that_names_it(tmp_path, text):
    file = tmp_path / "sites.toml"
    file.write_text(text)

    with pytest.raises(ConfigurationError, match=r"sites\.toml: "):
        read_sites_file(file)
    with pytest.raises(ConfigurationError, match=r"nowhere\.toml: No such file"):
        read_sites_file(tmp_path / "nowhere.toml")


def test_servers_and_what_was_shipped_come_back_as_they_were_written(tmp_path):
    servers = {"a": ServerSite("east", "b"), "ü": ServerSite()}
    shipping = ExpectedLogs((("a", "MSGTRK2026112112-1.LOG"),), (Dropped("a", "f", "r", "t"),))

    assert ({}, ExpectedLogs()) == (read_servers(str(tmp_path)), read_shipping(str(tmp_path)))
    write_servers(str(tmp_path), servers)
    write_shipping(str(tmp_path), shipping)

    assert (servers, shipping) == (read_servers(str(tmp_path)), read_shipping(str(tmp_path)))
    assert ["servers.json", "shipping.json"] == sorted(path.name for path in tmp_path.iterdir())


@pytest.mark.parametrize("text", ['{"mx1": {"site"', '{"mx1": {"sight": ""}, "missing": [{}]}', "[1]", "\x00" * 9])
def test_what_is_damaged_in_the_warehouse_is_named_with_what_to_do(tmp_path, text):
    for name, read in (("servers.json", read_servers), ("shipping.json", read_shipping)):
        (tmp_path / name).write_text(text)
        with pytest.raises(DamagedFile, match=rf"{tmp_path}/{name} is damaged .*: delete it; the next `shadowrelay sla ingest`"):
            read(str(tmp_path))


def test_a_full_disk_is_said_with_the_path(tmp_path):
    with pytest.raises(OSError, match=r"No space left on device: '.*/t\.parquet'"), written_whole(f"{tmp_path}/t.parquet"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    assert [] == list(tmp_path.iterdir())


def test_a_file_does_not_go_into_a_directory_that_has_its_name(tmp_path):
    (tmp_path / "sla.prom").mkdir()

    with pytest.raises(IsADirectoryError, match=r"sla\.prom"), written_whole(f"{tmp_path}/sla.prom") as file:
        file.write(b"x")

    assert [tmp_path / "sla.prom"] == list(tmp_path.rglob("*"))


def test_a_write_that_breaks_off_leaves_what_was_there(tmp_path):
    write_servers(str(tmp_path), {"a": ServerSite()})

    with pytest.raises(ZeroDivisionError), written_whole(f"{tmp_path}/servers.json") as file:
        file.write(b"{" * (1 // 0))

    assert {"a": ServerSite()} == read_servers(str(tmp_path))
    assert ["servers.json"] == [path.name for path in tmp_path.iterdir()]


@pytest.mark.parametrize("spelling", ["{}", "file:{}", "file://{}"])
def test_a_directory_may_be_spelt_as_spark_does(tmp_path, spelling):
    assert str(tmp_path) == located(spelling.format(tmp_path))[1]
