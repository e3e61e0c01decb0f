"""Which logs there are, and what is said about those that cannot be read."""

import os
from pathlib import Path

import pytest

from shadowrelay.sla.logs import NoLogs, Source, files_below, is_little, left_out, list_logs, require_logs, told_left_out
from shadowrelay.sla.storage import located
from shadowrelay.sla.stream import require_streamable


def test_little_is_measured_over_the_logs_of_all_servers(tmp_path):
    for server, size in (("a", 6), ("b", 4)):
        (tmp_path / server).mkdir()
        (tmp_path / server / "MSGTRK1.LOG").write_bytes(b"x" * size)
    (tmp_path / "b" / "manifest.json").write_bytes(b"no log")
    assert is_little(list_logs(str(tmp_path)), 10)

    (tmp_path / "b" / "MSGTRK2.LOG").write_bytes(b"x")
    assert not is_little(list_logs(str(tmp_path)), 10)


def test_a_directory_whose_name_is_no_text_is_named_with_what_to_do(tmp_path):
    os.mkdir(os.fsencode(tmp_path) + b"/mx\xff")

    with pytest.raises(NoLogs, match=r"must be UTF-8; rename '.*mx\\udcff'"):
        require_logs(str(tmp_path))


def test_a_log_whose_name_is_no_text_is_named_with_what_to_do(tmp_path):
    (tmp_path / "mx1").mkdir()
    (tmp_path / "mx1" / "MSGTRK1.LOG").touch()
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/mx1/note\xff")).touch()
    require_logs(str(tmp_path))
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/mx1/MSGTRK\xff.LOG")).touch()

    with pytest.raises(NoLogs, match=r"must be UTF-8; rename '.*mx1/MSGTRK\\udcff.LOG'"):
        require_logs(str(tmp_path))


def test_a_directory_that_may_not_be_read_is_named_with_what_to_do(tmp_path, monkeypatch):
    for server in ("mx1", "mx2"):
        (tmp_path / server).mkdir()
        (tmp_path / server / "MSGTRK1.LOG").touch()
    monkeypatch.setattr(os, "access", lambda path, mode: not path.endswith("mx2"))  # whoever runs this may be allowed everything

    with pytest.raises(NoLogs, match=r"/mx2: this directory cannot be read: give this user the right"):
        require_logs(str(tmp_path))


def put(directory, size=1, name="MSGTRK1.LOG"):
    directory.mkdir(parents=True, exist_ok=True)
    (directory / name).write_bytes(b"x" * size)


def test_a_log_stands_in_the_directory_of_its_server_and_nowhere_else(tmp_path):
    top = tmp_path / "logs:1::2"
    put(top / "mx1", size=3)
    put(top / "mx:2::b {a}", size=4)
    put(top / "mx2", name="manifest.json")
    put(top / "mx2" / "deeper")
    put(top / "mx2" / "MSGTRK2.LOG")
    put(top)
    put(tmp_path / "elsewhere", size=5)
    (top / "linked").symlink_to(tmp_path / "elsewhere")
    (top / "mx1" / "MSGTRK2.LOG").symlink_to(tmp_path / "elsewhere" / "MSGTRK1.LOG")
    (top / "mx1" / "MSGTRK3.LOG").symlink_to(tmp_path / "nowhere")

    assert [
        Source(f"{top}/linked/MSGTRK1.LOG", "linked", "MSGTRK1.LOG", 5),
        Source(f"{top}/mx1/MSGTRK1.LOG", "mx1", "MSGTRK1.LOG", 3),
        Source(f"{top}/mx1/MSGTRK2.LOG", "mx1", "MSGTRK2.LOG", 5),
        Source(f"{top}/mx:2::b {{a}}/MSGTRK1.LOG", "mx:2::b {a}", "MSGTRK1.LOG", 4),
    ] == list_logs(f"{top}/")
    for source in list_logs(str(top)):
        files, path = located(source.path)
        assert source.size == files.size(path)


def test_in_a_store_the_url_is_kept_and_what_is_new_is_seen(tmp_path):
    url = f"memory://{tmp_path.name}"
    with pytest.raises(NoLogs, match="no such directory"):
        require_logs(url)
    assert [] == require_logs(url, may_be_empty=True)
    files, top = located(url)
    files.pipe_file(f"{top}/mx1/MSGTRK1.LOG", b"xy")

    assert [Source(f"{url}/mx1/MSGTRK1.LOG", "mx1", "MSGTRK1.LOG", 2)] == require_logs(url) == list_logs(f"{url}/")


def test_a_server_that_hadoop_does_not_accept_is_told_for_the_stream_only(tmp_path):
    put(tmp_path / "mx:1")
    require_logs(str(tmp_path))

    with pytest.raises(NoLogs, match=r"mx:1: the name of a server's directory may not have a colon in `sla watch`; `sla ingest"):
        require_streamable(str(tmp_path))


def test_logs_are_read_in_either_case_and_packed_and_what_is_left_out_is_named(tmp_path):
    copies = ("Copy of MSGTRK1.LOG", "Kopie (2) von MSGTRK1.LOG", "MSGTRK1 - Copy (2).LOG", "MSGTRK1 (2).LOG.gz")
    read = ("MSGTRK1.LOG", "MSGTRK2.log", "msgtrkMD3.Log", "MSGTRK4.LOG.gz", *copies)
    for name in (*read, "MSGTRK5.LOG.zip", "MSGTRK6.csv", "notes.log", ".MSGTRK7.LOG.tmp", "._MSGTRK1.LOG", ". MSGTRK1.LOG"):
        put(tmp_path / "mx1", name=name)
    put(tmp_path, name="MSGTRK8.LOG")
    put(tmp_path / "mx1" / "2020", name="MSGTRK9.LOG")
    put(tmp_path / "mx1", name="mx1_MSGTRK9.LOG")

    assert sorted(read) == [source.name for source in list_logs(str(tmp_path))]
    names = left_out(str(tmp_path))
    assert ["MSGTRK8.LOG", "mx1/2020/MSGTRK9.LOG", "mx1/MSGTRK5.LOG.zip", "mx1/MSGTRK6.csv", "mx1/mx1_MSGTRK9.LOG"] == names
    assert told_left_out(names).startswith(
        "5 files are left out: MSGTRK8.LOG, mx1/2020/MSGTRK9.LOG, mx1/MSGTRK5.LOG.zip …; logs are read as"
    )
    assert "1 file is left out: MSGTRK8.LOG; " in told_left_out(names[:1])


def test_a_link_that_leads_nowhere_is_named_where_a_log_or_a_server_would_be(tmp_path):
    put(tmp_path / "mx1")
    for name in ("mx1/MSGTRK2.LOG", "mx1/Copy of MSGTRK2.log", "mx1/MSGTRK3.csv", "mx1/deeper/MSGTRK4.LOG", "mx1/notes.txt", "mx2", ".mx3"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).symlink_to(tmp_path / "nowhere" / name)
    (tmp_path / "mx1" / "MSGTRK5.LOG").symlink_to(tmp_path / "mx1" / "MSGTRK5.LOG")  # itself
    (tmp_path / "mx1" / "MSGTRK6.LOG").symlink_to(tmp_path / "mx1" / "MSGTRK1.LOG")  # read
    os.mkfifo(tmp_path / "mx1" / "MSGTRK7.LOG")
    os.mkfifo(tmp_path / "mx1" / "pipe")

    names = left_out(str(tmp_path))

    links = ("mx1/Copy of MSGTRK2.log", "mx1/MSGTRK2.LOG", "mx1/MSGTRK3.csv", "mx1/MSGTRK5.LOG", "mx1/deeper/MSGTRK4.LOG", "mx2")
    assert sorted([*(f"{link} (a link to nowhere)" for link in links), "mx1/MSGTRK7.LOG (no file)"]) == names
    assert told_left_out([names[0]]).endswith("rename, unpack or move them; mend links or delete them")
    assert ["mx1/MSGTRK1.LOG", "mx1/MSGTRK6.LOG"] == [f"{source.server}/{source.name}" for source in require_logs(str(tmp_path))]


def test_links_that_all_lead_nowhere_are_named_where_no_log_is_found(tmp_path):
    (tmp_path / "mx1").symlink_to(tmp_path / "nowhere")

    with pytest.raises(NoLogs, match=r": no logs: 1 file is left out: mx1 \(a link to nowhere\); logs are read"):
        require_logs(str(tmp_path))


def test_logs_that_are_all_somewhere_else_are_named_where_none_is_found(tmp_path):
    """As whoever copies a share with its whole path has them, or who names the directory of one server."""
    put(tmp_path / "EX1" / "TransportRoles" / "Logs" / "MessageTracking")
    (tmp_path / "empty").mkdir()

    assert ["EX1/TransportRoles/Logs/MessageTracking/MSGTRK1.LOG"] == left_out(str(tmp_path))
    with pytest.raises(NoLogs, match=r": no logs: 1 file is left out: EX1/TransportRoles/Logs/MessageTracking/MSGTRK1.LOG; logs are"):
        require_logs(str(tmp_path))
    with pytest.raises(NoLogs, match=r"/MessageTracking: no logs: 1 file is left out: MSGTRK1.LOG; logs are read as <server>/MSGTRK"):
        require_logs(str(tmp_path / "EX1" / "TransportRoles" / "Logs" / "MessageTracking"))
    with pytest.raises(NoLogs, match="no logs: they are looked for as"):
        require_logs(str(tmp_path / "empty"))


def test_files_are_found_through_links_and_a_circle_of_links_ends(tmp_path):
    put(tmp_path / "elsewhere" / "mx1")
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "mx1").symlink_to(tmp_path / "elsewhere" / "mx1")
    (tmp_path / "logs" / "mx2").symlink_to(tmp_path / "elsewhere" / "mx1")
    (tmp_path / "elsewhere" / "mx1" / "up").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "mx1" / "MSGTRK2.LOG").symlink_to(tmp_path / "elsewhere" / "mx1" / "MSGTRK1.LOG")
    files, top = located(str(tmp_path / "logs"))

    found = {path.removeprefix(f"{top}/"): entry["size"] for path, entry in files_below(files, top)}

    assert {f"{server}/{name}": 1 for server in ("mx1", "mx2") for name in ("MSGTRK1.LOG", "MSGTRK2.LOG")}.items() <= found.items()
