"""Generated logs with their exact truth: `generate` writes `<output>/logs`, `sites.toml` and `truth.json`."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.sla_files import Shipment, write_world
from benchmarks.sla_stories import play
from benchmarks.sla_world import NOW, World


def generate(
    output: Path,
    seeds: Sequence[int],
    *,
    messages: int = 40,
    nodes: int = 0,
    faults: float = 0.5,
    spoilt: float = 0.1,
    has_late: bool = False,
    rows_per_file: int = 0,
) -> dict[str, Any]:
    """One boundary a seed, named after it. Returns the truth, which also stands in `truth.json`.

    Shapes: `messages` acknowledged ones a boundary, at least; `nodes` live ones (0: three to five, and beside them one that
    ends early, one whose log burnt, one whose clock jumps); `faults` and `spoilt` are shares of messages and of files.
    """
    logs = output / "logs"
    logs.mkdir(parents=True)
    shipment, boundaries, sites = Shipment(), {}, []
    for seed in seeds:
        world = World(seed, nodes=nodes or 3 + seed % 3, boundary=f"b{seed}", faults=faults)
        play(world, messages)
        write_world(world, logs, shipment, spoilt=spoilt, late=output / "late" if has_late else None, rows_per_file=rows_per_file)
        boundaries[world.boundary] = world.truth.as_json()
        sites += [f'["{node.name}"]\nsite = "{node.site}"\nboundary = "{world.boundary}"\n' for node in world.nodes]
    (output / "sites.toml").write_text("\n".join(sites))
    truth = {
        "now": f"{NOW:%Y-%m-%dT%H:%M:%S.000000Z}", "seeds": list(seeds), "boundaries": boundaries,
        "input": {"files": shipment.files, "rows": shipment.rows, "rows_repeated": shipment.repeated, "files_late": shipment.late},
    }  # fmt: skip
    (output / "truth.json").write_text(json.dumps(truth, indent=1))
    return truth
