"""The files that containers use say what the commands rely on. Without Docker."""

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from shadowrelay.lab.compose import BUILT, MOUNTED, PROFILE_SERVICES
from shadowrelay.lab.disturbance import STOP_SECONDS
from shadowrelay.lab.engine import PROFILES
from shadowrelay.lab.state import State, let_everybody_read, write_certificates
from shadowrelay.lab.topology import MACHINES, NODES, RECEIVERS, SENDER
from shadowrelay.lab.verification import TIMES
from shadowrelay.node.connectors import GRACE_SECONDS
from shadowrelay.settings import configuration
from shadowrelay.settings.configuration import LoadedSettings
from tests.tidy.house import ROOT

COMPOSE = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
PROMETHEUS = (ROOT / "lab" / "prometheus.Dockerfile").read_text(encoding="utf-8")
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")


def services() -> set[str]:
    block = COMPOSE.partition("\nservices:\n")[2].partition("\nnetworks:\n")[0]
    return set(re.findall(r"(?m)^  ([\w.-]+):", block))


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, LoadedSettings]:
    """Each node's configuration beside the certificates that `lab up` makes, as in its container."""
    directory = tmp_path_factory.mktemp("nodes")
    write_certificates(directory, [(one.short, one.server) for one in MACHINES])
    for one in MACHINES:
        place = directory / one.short
        (place / "tls").mkdir()
        for file in ("node.pem", "node.key", "authority.pem"):
            shutil.move(place / file, place / "tls" / file)
        shutil.copy(ROOT / "lab" / "nodes" / f"{one.short}.toml", place / "node.toml")
    return {one.short: configuration.load(directory / one.short / "node.toml") for one in MACHINES}


def test_every_service_that_the_commands_name_is_there() -> None:
    named = {
        *NODES,
        *(one.network for one in MACHINES),
        SENDER,
        *RECEIVERS,
        *BUILT,
        "sla",
        *(s for group in PROFILE_SERVICES.values() for s in group),
    }

    assert set() == named - services()


def test_every_profile_can_be_named() -> None:
    assert set(PROFILES) == set(re.findall(r"profiles: \[(\w+)\]", COMPOSE))


def test_there_is_no_top_level_name_that_compose_1_29_rejects() -> None:
    assert not re.search(r"(?m)^(name|version):", COMPOSE)


def test_every_image_has_its_target() -> None:
    targets = set(re.findall(r"target: (\w+)", COMPOSE))

    assert {"relay", "mta", "spark"} == targets
    assert set() == targets - set(re.findall(r"(?m)^FROM \S+ AS ([\w-]+)", DOCKERFILE))
    assert {"debian:bookworm-slim"} == set(re.findall(r"(?m)^FROM (\S+:\S+)", DOCKERFILE + PROMETHEUS))


def test_nobody_waits_for_prometheus_who_does_not_want_it() -> None:
    assert ("prometheus" in DOCKERFILE.partition("FROM")[2], "dockerfile: lab/prometheus.Dockerfile" in COMPOSE) == (False, True)


def test_grafana_finds_its_dashboards_and_prometheus() -> None:
    """Debian has no Grafana to try it with."""
    steps = (ROOT / "lab" / "grafana.Dockerfile").read_text(encoding="utf-8").splitlines()
    source, dashboards = [
        (ROOT / "lab/grafana" / path).read_text(encoding="utf-8") for path in ("datasources/prometheus.yml", "dashboards/shadowrelay.yml")
    ]
    (port,) = re.findall(r"(?m)^EXPOSE (\d+)", PROMETHEUS)
    copied = dict(step.split()[1:] for step in steps if step.startswith("COPY "))

    assert f"url: http://prometheus:{port}" in source
    assert "type: prometheus" in source
    assert {"lab/grafana/": "/etc/grafana/provisioning/", "configs/grafana/": "/var/lib/grafana/dashboards/"} == copied
    assert copied["configs/grafana/"].rstrip("/") == re.findall(r"path: ([^}]+)}", dashboards)[0]
    assert "dockerfile: lab/grafana.Dockerfile" in COMPOSE


def test_what_is_copied_from_a_checkout_is_made_readable() -> None:
    stages = DOCKERFILE.split("\nFROM ")[1:]
    own = [(stage.split()[2], line) for stage in stages for line in stage.splitlines() if re.match("COPY (lab|shadowrelay)", line)]
    (source,) = [stage for stage in stages if stage.split()[2] == "source"]

    assert {"source"} == {stage for stage, _ in own}
    assert ("RUN chmod -R a+rX /source", True) == (source.partition("\n\n")[0].splitlines()[-1], "chmod a+r" in PROMETHEUS)


def test_what_is_mounted_from_a_checkout_is_made_readable() -> None:
    mounted = set(re.findall(r"- \./(lab/\S+?):", COMPOSE))

    assert mounted == {str(path.relative_to(ROOT)) for pattern in MOUNTED for path in ROOT.glob(pattern)}


@pytest.mark.parametrize("umask", [0o027, 0o077])
def test_the_umask_of_who_starts_the_lab_does_not_matter(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        shutil.copytree(ROOT / "lab" / "nodes", tmp_path / "lab" / "nodes")
        State(tmp_path / ".lab").make()
        assert {f"{node}.toml" for node in NODES} == {path.name for path in (tmp_path / ".lab" / "nodes").iterdir()}
        (tmp_path / "node.toml").touch()
    finally:
        os.umask(before)
    let_everybody_read([tmp_path / "node.toml"])

    for path in (tmp_path / ".lab").rglob("*"):
        if path.name != "settings.json":
            assert (0o755 if path.is_dir() else 0o644) == path.stat().st_mode & 0o777, path
    assert 0o755 == (tmp_path / ".lab").stat().st_mode & 0o777
    assert 0o444 == (tmp_path / "node.toml").stat().st_mode & 0o444


def test_a_node_has_time_to_drain_before_docker_kills_it() -> None:
    assert [f"{STOP_SECONDS}s"] == re.findall(r"x-node:(?s:.*?)stop_grace_period: (\w+)", COMPOSE)
    assert STOP_SECONDS > 2 * GRACE_SECONDS


def test_the_nodes_are_configured_alike_and_know_each_other(loaded: dict[str, LoadedSettings]) -> None:
    everybody = {one.server: one.site for one in MACHINES}
    for one in MACHINES:
        settings = loaded[one.short].settings
        known = {peer.name: peer.site for peer in settings.peers} | {settings.server.name: settings.server.site}
        assert everybody == known
    texts = [(ROOT / "lab" / "nodes" / f"{node}.toml").read_text(encoding="utf-8") for node in NODES]
    assert 1 == len({text.partition("[transport]")[2].partition("[[peers]]")[0] for text in texts})
    assert 1 == len({text.partition("# no [[routes]]")[2] for text in texts})


def test_the_verification_knows_the_times_of_the_nodes(loaded: dict[str, LoadedSettings]) -> None:
    transport = loaded["mx1.east"].settings.transport
    seconds = [transport.shadow_resubmit_time_span, transport.shadow_heartbeat_frequency, transport.discard_poll_interval]

    assert [TIMES.span, TIMES.heartbeat, TIMES.poll] == [each.total_seconds() for each in seconds]


def test_the_only_doubts_about_a_node_are_its_short_span_and_its_open_admin_address(loaded: dict[str, LoadedSettings]) -> None:
    doubts = configuration.warnings(loaded["mx2.west"].settings)

    assert 2 == len(doubts)
    assert doubts[0].startswith("transport.shadow_resubmit_time_span allows")
    assert doubts[1].startswith("admin.listen is 0.0.0.0:8025")


@pytest.mark.slow
def test_compose_itself_finds_the_file_valid(tmp_path: Path) -> None:
    if shutil.which("docker-compose") is None:
        pytest.skip("no docker-compose here")
    done = subprocess.run(
        ["docker-compose", "-f", str(ROOT / "docker-compose.yml"), "config", "-q"], capture_output=True, text=True, check=False
    )

    assert (0, "") == (done.returncode, done.stderr.strip())


def test_the_report_is_measured_against_the_times_of_the_nodes() -> None:
    times = tomllib.loads((ROOT / "lab" / "objectives.toml").read_text(encoding="utf-8"))["times"]

    assert [f"{TIMES.heartbeat:g}s", f"{TIMES.span:g}s"] == [times["shadow_heartbeat_frequency"], times["shadow_resubmit_time_span"]]
