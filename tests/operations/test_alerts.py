"""The alert rules: what they ask for exists on a running node, promtool agrees with them, and each has its page in the runbook."""

import asyncio
import json
import re
import shutil
import subprocess
from pathlib import Path

import httpx
import pytest
import trustme
from prometheus_client.parser import text_string_to_metric_families

from shadowrelay.lab.cluster import Cluster, Place
from shadowrelay.model.routing import HostPort
from tests.kit.clock import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]
RULES = ROOT / "configs/prometheus/alerts.yml"
DASHBOARDS = [json.loads(path.read_text(encoding="utf-8")) for path in sorted((ROOT / "configs/grafana").glob("*.json"))]
RULE_TESTS = [RULES.with_name("alerts_test.yml"), RULES.with_name("alerts_day_test.yml")]
CASE = "  - name: "
UNPACKED = ROOT / ".venv/interop/prometheus/usr/bin/promtool"
PROMTOOL = str(UNPACKED) if UNPACKED.exists() else shutil.which("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="needs promtool: requirements/setup.sh interop")

ALERT = re.compile(r"(?m)^      - alert: (\w+)$")
EXPRESSION = re.compile(r"(?ms)^        expr: (?:\|\n)?(.*?)(?=^        (?:for|labels): )")
SELECTOR = re.compile(r"\b((?:shadowrelay_|up\b)\w*)(?:\{([^}]*)\})?")
MATCHER = re.compile(r'(\w+)(=~|!=|=)"([^"]*)"')
FROM_PROMETHEUS = {"instance", "job"}
PLACES = (Place("a.east.example", "east"), Place("b.west.example", "west"))


def rules() -> dict[str, str]:
    """Name -> its lines."""
    parts = ALERT.split(RULES.read_text(encoding="utf-8"))[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def expression(rule: str) -> str:
    found = EXPRESSION.search(rule)
    assert found is not None, rule
    return found[1]


def promtool(*arguments: str) -> str:
    done = subprocess.run([str(PROMTOOL), *arguments], cwd=RULES.parent, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_every_rule_says_how_urgent_it_is_what_is_wrong_and_where_to_read_on() -> None:
    headings = re.findall(r"(?m)^## (\w+)$", (ROOT / "docs/runbook.md").read_text(encoding="utf-8"))
    anchors = {f"docs/runbook.md#{heading.lower()}" for heading in headings}
    found = {name: re.findall(r"severity: (\w+)|runbook_url: (\S+)|(summary): \S", rule) for name, rule in rules().items()}
    flat = {name: [word for words in matches for word in words if word] for name, matches in found.items()}

    assert len(flat) > 15
    assert {} == {name: words for name, words in flat.items() if len(words) != 3 or words[0] not in ("page", "ticket")}
    assert set() == {words[-1] for words in flat.values()} - anchors
    assert set() == anchors - {words[-1] for words in flat.values()}, "a page without an alert"


def test_every_rule_of_a_node_leads_to_the_page_of_the_console_that_shows_it() -> None:
    found = {name: re.findall(r"console_url: (.*)", rule) for name, rule in rules().items() if "$labels.instance" in rule}
    pages = {f'"https://{{{{ $labels.instance }}}}{path}"' for path in ("/", "/queues", "/peers")}

    assert len(found) > 30
    assert {} == {name: urls for name, urls in found.items() if len(urls) != 1 or urls[0] not in pages}


def test_every_rule_is_tested_for_silence_and_for_firing() -> None:
    cases = [case for path in RULE_TESTS for case in path.read_text(encoding="utf-8").split(CASE)[1:]]
    tested = {case.split()[0]: ("exp_alerts: []" in case, "exp_labels" in case) for case in cases}

    assert dict.fromkeys(rules(), (True, True)) == tested


@needs_promtool
def test_promtool_accepts_rules_and_configuration_and_their_tests_pass() -> None:
    assert "" == promtool("check", "rules", RULES.name)
    assert "" == promtool("check", "config", "--syntax-only", "prometheus.yml")
    assert "" == promtool("test", "rules", *(path.name for path in RULE_TESTS))


@needs_promtool
def test_the_tests_of_the_rules_can_fail(tmp_path: Path) -> None:
    (tmp_path / RULES.name).write_text(RULES.read_text().replace("> 300", "> 3000"))
    head, *cases = RULE_TESTS[0].read_text().split(CASE)
    case = tmp_path / RULE_TESTS[0].name
    case.write_text(head + CASE + next(text for text in cases if text.startswith("ShadowrelayPeerSilent ")))

    assert "ShadowrelayPeerSilent" in promtool("test", "rules", str(case))


async def scraped(directory: Path) -> dict[str, list[dict[str, str]]]:
    """Metric name -> labels of its series, from one of two nodes that show everything that a node can show."""
    authority = trustme.CA()
    certificate = authority.issue_cert(*(place.name for place in PLACES))
    certificate.private_key_and_cert_chain_pem.write_to_path(str(directory / "nodes.pem"))
    authority.cert_pem.write_to_path(str(directory / "peers.pem"))
    (directory / "shipped").mkdir()
    tables = {
        "tls": {"certificate": "../nodes.pem", "key": "../nodes.pem", "peer_authority": "../peers.pem"},
        "shipping": {"target": str(directory / "shipped")},
    }
    async with Cluster(PLACES, HostPort("127.0.0.1", 9), directory=directory, tables=tables) as cluster:
        node = next(iter(cluster.nodes.values()))
        token = (node.directory / "token").read_text().strip()
        async with httpx.AsyncClient(headers={"Authorization": f"Bearer {token}"}, timeout=PATIENCE_SECONDS) as client:
            text = (await client.get(f"http://{node.admin}/metrics")).raise_for_status().text
    found: dict[str, list[dict[str, str]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample.labels)
    return found


def missing_from(series: dict[str, list[dict[str, str]]], text: str) -> list[str]:
    """Metrics, labels and label values that an expression names and no node shows."""
    missing = []
    for metric, matchers in SELECTOR.findall(text):
        if metric == "up":
            continue
        if metric not in series:
            missing.append(metric)
            continue
        for label, operator, value in MATCHER.findall(matchers):
            shown = {labels.get(label) for labels in series[metric]}
            wanted = {value} if operator != "=~" else set(value.split("|"))
            if label not in FROM_PROMETHEUS and not wanted <= shown:
                missing.append(f"{metric}{{{label}}}: {wanted} of {shown}")
    return missing


@pytest.mark.slow
@pytest.mark.usefixtures("warm_starts")
def test_every_metric_label_and_value_in_the_rules_is_shown_by_a_running_node(tmp_path: Path) -> None:
    series = asyncio.run(scraped(tmp_path))
    by_labels = {label for words in re.findall(r"(?:by|on) \(([^)]+)\)", RULES.read_text()) for label in words.split(", ")}
    shown_labels = {label for each in series.values() for labels in each for label in labels} | FROM_PROMETHEUS | {"le"}

    assert {} == {name: missing for name, rule in rules().items() if (missing := missing_from(series, expression(rule)))}
    assert set() == by_labels - shown_labels
    named = set(re.findall(r"\$labels\.(\w+)", RULES.read_text()))
    assert set() == named - shown_labels
    queries = {panel["title"]: target["expr"] for board in DASHBOARDS for panel in board["panels"] for target in panel["targets"]}
    assert len(queries) > 20
    assert {} == {title: missing for title, query in queries.items() if (missing := missing_from(series, query))}
    invented = missing_from(series, 'shadowrelay_nothing > shadowrelay_queue_messages{kind="None"}')
    assert ["shadowrelay_nothing", "shadowrelay_queue_messages{kind}"] == [text.split(":")[0] for text in invented]
