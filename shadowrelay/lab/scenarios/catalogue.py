"""All scenarios, in the order in which `lab scenario --list` tells them."""

from shadowrelay.lab.places import WrongUse
from shadowrelay.lab.scenarios import networks, operations, servers
from shadowrelay.lab.scenarios.script import Scenario, by_name

SCENARIOS: dict[str, Scenario] = by_name((*servers.SCENARIOS, *networks.SCENARIOS, *operations.SCENARIOS))


def scenario(name: str) -> Scenario:
    """By its name. Raises: WrongUse naming those that there are."""
    if name not in SCENARIOS:
        raise WrongUse(f"there is no scenario {name}; there are {', '.join(SCENARIOS)}")
    return SCENARIOS[name]
