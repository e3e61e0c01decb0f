"""Tests in containers are skipped where there are none to be had."""

from pathlib import Path

import pytest

from tests.lab import docker
from tests.lab.conftest import a_program


@pytest.mark.parametrize("program", ["", "exit 1"])
def test_without_an_engine_tests_in_containers_are_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    monkeypatch.setattr(docker, "IS_WANTED", False)
    monkeypatch.setenv("PATH", str(tmp_path))
    if program:
        a_program(tmp_path, "docker", program)

    with pytest.raises(pytest.skip.Exception):
        docker.lab_or_skip()
