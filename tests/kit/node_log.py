"""The operator log of a node that runs, as far as it is written."""

import json
from pathlib import Path
from typing import Any

from shadowrelay.lab.cluster import NodeProcess


def whole_lines(path: Path) -> list[str]:
    """Without the last one while it is being written: a reader may come in the middle of a write."""
    return path.read_text().rpartition("\n")[0].splitlines()


def operator_events(node: NodeProcess) -> list[dict[str, Any]]:
    """What stands in its operator log now."""
    return [json.loads(line) for line in whole_lines(node.directory / "node.log") if line.startswith("{")]
