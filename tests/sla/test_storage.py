"""What Spark needs for a store is said; paths are taken in every form."""

import uuid
from pathlib import Path

import pytest

from shadowrelay.model.replies import ConfigurationError
from shadowrelay.sla import storage as module
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
