"""What a running node shows: its operator log, as far as it is written, and its memory."""

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


def rss_kilobytes(node: NodeProcess) -> int:
    """Resident memory."""
    assert node.process is not None
    status = Path(f"/proc/{node.process.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0])
