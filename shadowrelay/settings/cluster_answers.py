"""What `shadowrelay init` was told, kept as `cluster.toml` in the cluster's directory: the next call needs only what changes.
docs/setup.md "The day after".

Values; only `read_answers` opens a file.
"""

import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from shadowrelay.model.replies import ConfigurationError

FILE = "cluster.toml"
TITLE = "# Written by `shadowrelay init`, which reads it at its next call in this directory. Options of that call change it.\n"


@dataclass(frozen=True, slots=True)
class Answers:
    """Shapes: as texts of the options, `nodes` as "name,site", "name,site,host:port" or "name,site,host:port,processes", `witnesses` as the
    first two."""

    nodes: tuple[str, ...] = ()
    witnesses: tuple[str, ...] = ()
    boundary: str = "default"
    accepted_domains: tuple[str, ...] = ()
    relay_from: tuple[str, ...] = ()
    next_hops: tuple[str, ...] = ()
    is_in_containers: bool = False

    @property
    def text(self) -> str:
        """TOML, which writes texts, lists and booleans like JSON."""
        lines = (f"{one.name} = {json.dumps(getattr(self, one.name), ensure_ascii=False)}\n" for one in fields(self))
        return TITLE + "".join(lines)


def name_of(node: str) -> str:
    """The name in "name,site,host:port", as `init` compares names."""
    return node.partition(",")[0].strip().lower()


def read_answers(directory: Path) -> Answers | None:
    """`None`: nothing is kept there. Raises: ConfigurationError naming the file and the remedy."""
    path = directory / FILE
    remedy = "correct it, or move it away and name all nodes and options once more"
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise ConfigurationError(f"{path} cannot be read ({exc.strerror}); {remedy}") from exc
    except ValueError as exc:
        raise ConfigurationError(f"{path} is not TOML ({exc}); {remedy}") from exc
    values: dict[str, object] = {}
    for key, value in found.items():
        default = getattr(Answers(), key, None)
        if isinstance(default, tuple) and isinstance(value, list) and all(isinstance(one, str) for one in value):
            values[key] = tuple(value)
        elif not isinstance(default, tuple) and type(value) is type(default):
            values[key] = value
        else:
            raise ConfigurationError(f"{path}: {key} is not what init writes there; {remedy}")
    return replace(Answers(), **values)  # type: ignore[arg-type]


def changed(kept: Answers, given: Answers, removed: Sequence[str] = ()) -> Answers:
    """What was kept, with the given nodes added or changed and the removed ones left out. Other lists that are given replace the kept ones.

    Raises: ConfigurationError for a name that is no node's.
    """
    nodes, twice = _with(kept.nodes, given.nodes)
    witnesses, witnesses_twice = _with(kept.witnesses, given.witnesses)
    unknown = [name for name in removed if name_of(name) not in nodes | witnesses]
    if unknown:
        known = ", ".join(nodes | witnesses) or "none"
        raise ConfigurationError("\n".join(f"--remove {name}: is not a node of this cluster; its nodes: {known}" for name in unknown))
    gone = {name_of(name) for name in removed}
    return Answers(
        nodes=(*(one for name, one in nodes.items() if name not in gone), *twice),
        witnesses=(*(one for name, one in witnesses.items() if name not in gone), *witnesses_twice),
        boundary=given.boundary or kept.boundary,
        accepted_domains=given.accepted_domains or kept.accepted_domains,
        relay_from=given.relay_from or kept.relay_from,
        next_hops=given.next_hops or kept.next_hops,
        is_in_containers=given.is_in_containers or kept.is_in_containers,
    )


def _with(kept: Sequence[str], given: Sequence[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Nodes by name, those that are given added or changed; and those whose name was given before, which is a mistake to report."""
    first = {name_of(one): one for one in reversed(given)}
    twice = tuple(one for index, one in enumerate(given) if name_of(one) in map(name_of, given[:index]))
    return {name_of(one): one for one in kept} | {name: first[name] for name in map(name_of, given)}, twice
