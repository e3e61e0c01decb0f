"""The dashboards and the rules in a real Prometheus that scrapes real nodes: every panel shows something."""

import asyncio
import json
import math
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme

from shadowrelay.lab.cluster import Cluster, Place, free_ports
from shadowrelay.lab.traffic import Sink
from shadowrelay.model.routing import HostPort
from tests.kit.clients import submit
from tests.kit.clock import PATIENCE_SECONDS
from tests.kit.processes import wait_until_peers_know_each_other

ROOT = Path(__file__).parents[2]
DASHBOARDS = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted((ROOT / "configs/grafana").glob("*.json"))}
UNPACKED = ROOT / ".venv/interop/prometheus/usr/bin/prometheus"
PROMETHEUS = str(UNPACKED) if UNPACKED.exists() else shutil.which("prometheus")
PLACES = (Place("a.east.example", "east"), Place("b.west.example", "west"))
NOWHERE = HostPort("127.0.0.1", 9)

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.usefixtures("warm_starts"),
    pytest.mark.skipif(PROMETHEUS is None, reason="needs prometheus: requirements/setup.sh interop"),
]


@asynccontextmanager
async def prometheus(directory: Path, targets: list[str]) -> AsyncIterator[httpx.AsyncClient]:
    """That scrapes these each second, with the rules of the project."""
    (port,) = free_ports(1)
    rules = ROOT / "configs/prometheus/alerts.yml"
    configuration = f"""
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: ["{rules}"]
scrape_configs:
  - job_name: shadowrelay
    static_configs: [{{targets: {json.dumps(targets)}}}]
"""
    (directory / "prometheus.yml").write_text(configuration)
    command = [
        str(PROMETHEUS), f"--config.file={directory}/prometheus.yml", f"--storage.tsdb.path={directory}/tsdb",
        f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn",
    ]  # fmt: skip
    with (directory / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}/api/v1", timeout=PATIENCE_SECONDS) as client:
            yield client
    finally:
        process.terminate()
        process.wait(PATIENCE_SECONDS)


async def asked(client: httpx.AsyncClient, path: str, **parameters: str) -> Any:
    """The data of an answer; None while Prometheus is not there. A query that is wrong fails."""
    try:
        response = await client.get(path, params=parameters)
    except httpx.TransportError:
        return None
    assert response.status_code in (200, 503), response.text
    return response.json()["data"] if response.status_code == 200 else None


def queries(instance: str) -> dict[str, str]:
    """By board, panel and place: what Grafana asks for one node."""
    return {
        f"{board}: {panel['title']} {number}": target["expr"].replace("$instance", instance)
        for board, found in DASHBOARDS.items()
        for panel in found["panels"]
        for number, target in enumerate(panel["targets"])
    }


async def empty_panels(client: httpx.AsyncClient, instance: str) -> list[str]:
    """Those that show nothing, or only what is no number."""
    found = []
    for name, query in queries(instance).items():
        data = await asked(client, "/query", query=query)
        values = [float(one["value"][1]) for one in data["result"]] if data else []
        if not values or all(math.isnan(value) for value in values):
            found.append(name)
    return found


async def test_no_panel_is_empty_and_no_rule_fails_with_the_metrics_of_real_nodes(tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert(*(place.name for place in PLACES))
    certificate.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "nodes.pem"))
    authority.cert_pem.write_to_path(str(tmp_path / "peers.pem"))
    tables = {"tls": {"certificate": "../nodes.pem", "key": "../nodes.pem", "peer_authority": "../peers.pem"}}
    sink = Sink()
    next_hop = await sink.start()
    routes = {"*@slow.example": NOWHERE}
    async with Cluster(PLACES, next_hop, directory=tmp_path, tables=tables, routes=routes) as cluster:
        nodes = list(cluster.nodes.values())
        wait_until_peers_know_each_other(nodes)
        async with prometheus(tmp_path, [str(node.admin) for node in nodes]) as client:

            async def is_shown() -> bool:
                for node in nodes:
                    await submit(node.address, "b@x.example")
                    await submit(node.address, "b@slow.example")
                return [] == await empty_panels(client, str(nodes[0].admin))

            deadline = asyncio.get_running_loop().time() + 2 * PATIENCE_SECONDS
            while not await is_shown():
                assert asyncio.get_running_loop().time() < deadline, await empty_panels(client, str(nodes[0].admin))
                await asyncio.sleep(1)
            rules = await asked(client, "/rules")
            invented = await asked(client, "/query", query=f'shadowrelay_nothing{{instance="{nodes[0].admin}"}}')
    await sink.close()

    failed = {rule["name"]: rule["lastError"] for group in rules["groups"] for rule in group["rules"] if rule.get("lastError")}
    assert {} == failed
    assert 30 < sum(len(group["rules"]) for group in rules["groups"])
    assert [] == invented["result"]


def test_each_panel_has_a_title_a_unit_or_a_mapping_and_a_place_of_its_own() -> None:
    for board, found in DASHBOARDS.items():
        titles = [panel["title"] for panel in found["panels"]]
        places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in found["panels"]]
        assert (len(titles), len(places)) == (len(set(titles)), len(set(places))), board
        assert [] == [panel["title"] for panel in found["panels"] if not panel["targets"] or "fieldConfig" not in panel], board
