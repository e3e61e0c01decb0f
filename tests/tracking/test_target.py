"""Where files go: which targets there are, and that nobody sees half a file there."""

import errno
import os

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from shadowrelay.bounded import Abandoned, Attempt
from shadowrelay.model.replies import ConfigurationError
from shadowrelay.tracking import target as module
from shadowrelay.tracking.target import TEMP_PREFIX, check_target, open_target

LEAVE = Attempt()


class Store(MemoryFileSystem):
    """A store on a server: remembers what it was asked for, and can be made to misbehave."""

    protocol = "teststore"
    store = {}  # noqa: RUF012 (as in its parent)
    pseudo_dirs = [""]  # noqa: RUF012
    asked: list[tuple[str, str]] = []  # noqa: RUF012
    faults: dict[str, object] = {}  # noqa: RUF012

    @classmethod
    def _strip_protocol(cls, path):
        return "/" + path.removeprefix("teststore://").removeprefix("testobjects://").strip("/")

    def put_file(self, lpath, rpath, **kwargs):
        self.asked.append(("put", rpath.rpartition("/")[2]))
        super().put_file(lpath, rpath, **kwargs)
        if "short" in self.faults:
            self.store[rpath].truncate(3)

    def pipe_file(self, path, value, **kwargs):
        self.asked.append(("pipe", path.rpartition("/")[2]))
        super().pipe_file(path, value, **kwargs)

    def mv(self, path1, path2, **kwargs):
        if "no overwriting" in self.faults and self.exists(path2):
            raise OSError(errno.EEXIST, "exists")
        self.asked.append(("mv", path2.rpartition("/")[2]))
        self.store[path2] = self.store.pop(path1)


@pytest.fixture
def store(monkeypatch):
    for protocol in ("teststore", "testobjects"):
        fsspec.register_implementation(protocol, Store, clobber=True)
    monkeypatch.setattr(module, "WHOLE", module.WHOLE | {"testobjects"})
    for kept in (Store.store, Store.asked, Store.faults):
        kept.clear()
    return Store


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "source"
    path.write_bytes(b"content")
    return path


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("s3://bucket/x", "s3:// needs a package that is not installed; install it beside shadowrelay: pip install s3fs"),
        ("sftp://host/x", "sftp:// needs a package that is not installed; install it beside shadowrelay: pip install paramiko"),
        ("smb://host/x", "smb:// needs a package that is not installed; install it beside shadowrelay: pip install smbprotocol"),
        ("https://host/x", "https:// cannot be written to; choose a directory, s3://, gs://, abfs:// or sftp://"),
        ("nonsense://host/x", f"nonsense:// is unknown to fsspec {fsspec.__version__}; use an absolute directory, s3://, gs://, abfs://, "),
    ],
)
def test_a_target_that_cannot_work_is_refused_with_its_remedy(target, expected, monkeypatch):
    def not_installed(name):
        raise ImportError from ModuleNotFoundError(name=name)

    known = {"s3": "s3fs", "sftp": "paramiko", "smb": "smbclient"}
    get = fsspec.get_filesystem_class
    monkeypatch.setattr(
        fsspec, "get_filesystem_class", lambda protocol: not_installed(known[protocol]) if protocol in known else get(protocol)
    )

    with pytest.raises(ConfigurationError) as refused:
        check_target(target)

    assert str(refused.value).startswith(f"shipping.target: {expected}")


@pytest.mark.parametrize("target", ["/srv/logs", "file:///srv/logs", "memory://logs"])
def test_targets_that_need_no_package_are_accepted(target):
    check_target(target)


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_directory_is_made_and_a_file_is_synced_before_it_has_its_name(tmp_path, source, scheme, monkeypatch):
    events = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *given, name=name, real=real: (events.append(name), real(*given)))
    target = open_target(f"{scheme}{tmp_path}/landing", {}, "mx1")

    target.put(source, "a.LOG", LEAVE)
    target.replace("manifest.json", b"first", LEAVE)
    target.replace("manifest.json", b"second", LEAVE)

    assert {"a.LOG": b"content", "manifest.json": b"second"} == {p.name: p.read_bytes() for p in (tmp_path / "landing" / "mx1").iterdir()}
    assert ["fsync", "replace", "fsync"] * 3 == events
    assert (b"second", None) == (target.read("manifest.json"), target.read("other"))


def test_an_abandoned_attempt_changes_nothing_that_anybody_looks_at(tmp_path, source, store):
    attempt = Attempt()
    attempt.is_abandoned = True
    for target in (open_target(str(tmp_path / "landing"), {}, "mx1"), open_target("teststore://x", {}, "mx1")):
        with pytest.raises(Abandoned):
            target.put(source, "a.LOG", attempt)
        with pytest.raises(Abandoned):
            target.replace("manifest.json", b"old", attempt)

    assert ([], {}) == (list((tmp_path / "landing" / "mx1").iterdir()), store.store)


def test_a_store_without_whole_objects_gets_a_file_under_another_name_first(source, store):
    target = open_target("teststore://host/logs", {}, "mx1")
    target.put(source, "a.LOG", LEAVE)
    target.replace("manifest.json", b"first", LEAVE)

    assert {"/host/logs/mx1/a.LOG": b"content", "/host/logs/mx1/manifest.json": b"first"} == {
        k: v.getvalue() for k, v in store.store.items()
    }
    assert [verb for verb, _ in store.asked] == ["put", "mv", "pipe", "mv"]
    assert store.asked[0][1].startswith(f"{TEMP_PREFIX}a.LOG.")
    assert store.asked[2][1].startswith(f"{TEMP_PREFIX}manifest.json.")


def test_an_object_store_gets_each_object_as_it_is(source, store):
    target = open_target("testobjects://bucket/logs", {}, "mx1")
    target.clean()
    target.put(source, "a.LOG", LEAVE)
    target.replace("manifest.json", b"first", LEAVE)

    assert [("put", "a.LOG"), ("pipe", "manifest.json")] == store.asked
    assert (b"first", None) == (target.read("manifest.json"), target.read("other"))


def test_a_file_that_arrived_short_does_not_get_its_name(source, store):
    store.faults["short"] = True
    target = open_target("teststore://host", {}, "mx1")

    with pytest.raises(OSError, match="3 of 7 bytes arrived"):
        target.put(source, "a.LOG", LEAVE)

    assert {} == store.store


def test_a_server_that_renames_over_nothing_gets_a_new_manifest_all_the_same(store):
    store.faults["no overwriting"] = True
    target = open_target("teststore://host", {}, "mx1")
    target.replace("manifest.json", b"first", LEAVE)
    target.replace("manifest.json", b"second", LEAVE)

    assert b"second" == target.read("manifest.json")


def test_leftovers_of_an_earlier_process_are_removed_and_nothing_else(tmp_path, store):
    store.store["/host/mx1/" + TEMP_PREFIX + "a"] = store.store["/host/mx1/a.LOG"] = store.store["/host/mx2/" + TEMP_PREFIX + "a"] = None
    directory = tmp_path / "mx1"
    directory.mkdir()
    for name in (f"{TEMP_PREFIX}a", "a.LOG"):
        (directory / name).touch()
    store.store = {name: module.fsspec.implementations.memory.MemoryFile() for name in store.store}

    open_target(str(tmp_path), {}, "mx1").clean()
    open_target(str(tmp_path / "none"), {}, "mx1").clean()
    open_target("teststore://host", {}, "mx1").clean()

    assert ["a.LOG"] == [path.name for path in directory.iterdir()]
    assert ["/host/mx1/a.LOG", f"/host/mx2/{TEMP_PREFIX}a"] == sorted(store.store)


def test_after_a_failure_the_connection_is_a_new_one_with_the_same_options(store, monkeypatch):
    made = []
    real = fsspec.core.url_to_fs
    monkeypatch.setattr(fsspec.core, "url_to_fs", lambda url, **options: made.append(options) or real(url))
    target = open_target("teststore://host", {"username": "bob"}, "mx1")
    assert [] == made

    target.read("a")
    target.read("a")
    target.disconnect()
    target.read("a")

    assert [{"skip_instance_cache": True, "username": "bob"}] * 2 == made
