"""What Spark needs for a store is said; paths are taken in every form."""

import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from shadowrelay.model.replies import ConfigurationError
from shadowrelay.sla import storage as module
from shadowrelay.sla.report import Store
from shadowrelay.sla.storage import located, require_hadoop, written_whole


def test_a_connector_that_is_there_or_asked_for_is_enough(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    place = "gs://b/w"
    monkeypatch.setattr(module, "located", lambda path: None)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    monkeypatch.delenv("PYSPARK_SUBMIT_ARGS", raising=False)
    with pytest.raises(ConfigurationError, match=f"{tmp_path}/jars"):
        require_hadoop("--warehouse", place)

    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--packages a:b:1 pyspark-shell")
    require_hadoop("--warehouse", place)
    monkeypatch.delenv("PYSPARK_SUBMIT_ARGS")
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "gcs-connector-4.0.jar").touch()
    require_hadoop("--warehouse", place)


@pytest.mark.parametrize("place", ["/w", "file:///w", "file:/w", "hdfs://host/w"])
def test_spark_needs_nothing_more_for_a_disk_or_its_own_store(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "located", lambda path: None)

    require_hadoop("--warehouse", place)


@pytest.mark.parametrize(
    ("given", "found"),
    [("/a/b/", "/a/b"), ("/a::b/c:d", "/a::b/c:d"), ("file:/a/b", "/a/b"), ("file:///a/b", "/a/b"), ("/a://b", "/a://b")],
)
def test_a_path_on_a_disk_is_one_in_every_form_and_with_any_name(given: str, found: str) -> None:
    files, path = located(given)

    assert (found, True) == (path, module.is_local(files))


def test_a_relative_path_is_one_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    assert f"{tmp_path}/logs" == located("logs")[1]


def test_two_reports_that_end_at_once_in_one_directory_do_not_mix(tmp_path: Path) -> None:
    """Tables, spreadsheets and pages are those of one of them."""
    session: Any = None  # only tables need one

    def make(number: int) -> None:
        store = Store(session, str(tmp_path))
        for directory in ("tables/losses", "csv"):
            (Path(store.work) / directory).mkdir(parents=True)
            (Path(store.work) / directory / "part").write_text(str(number))
        store.publish({"report.html": b"%d" % number, "summary.json": b"%d" % number})
        store.clear()

    with ThreadPoolExecutor(4) as makers:
        list(makers.map(make, range(40)))

    found = {path.relative_to(tmp_path).as_posix(): path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    assert {"tables/losses/part", "csv/part", "report.html", "summary.json"} == {name for name in found if not name.startswith(".")}
    assert 1 == len({found[name] for name in found if not name.startswith(".")})


def test_a_failed_write_leaves_nothing_new_in_a_store() -> None:
    place = f"memory://{uuid.uuid4().hex}/file"
    files, path = located(place)

    with pytest.raises(ValueError, match="bad row"):
        _write_half(place)
    assert not files.exists(path)

    with written_whole(place) as file:
        file.write(b"whole")
    with pytest.raises(ValueError, match="bad row"):
        _write_half(place)
    assert b"whole" == files.cat_file(path)


def _write_half(place: str) -> None:
    with written_whole(place) as file:
        file.write(b"half")
        raise ValueError("bad row")
