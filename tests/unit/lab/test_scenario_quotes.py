"""What scenarios quote of Exchange's documents is short, and says where it stands."""

import re

import pytest

from shadowrelay.lab.scenarios.catalogue import SCENARIOS
from shadowrelay.lab.scenarios.script import Scenario
from tests.tidy.house import listed_ids

QUOTED = re.compile(r'"([^"]+)"')
CITED = re.compile(r"\(([a-z]+-[a-z0-9]+)(?:[ ,;:][^)]*)?\)")
WORDS_MAX = 12


@pytest.mark.parametrize("played", SCENARIOS.values(), ids=lambda played: played.name)
def test_a_quotation_is_short_and_has_its_source_behind_it(played: Scenario) -> None:
    parts = QUOTED.split(played.exchange)
    quotations, texts_behind = parts[1::2], parts[2::2]

    assert [] == [words for words in quotations if len(words.split()) > WORDS_MAX]
    assert [] == [text for text in texts_behind if not CITED.search(text)]
    assert set() == set(CITED.findall(played.exchange)) - set(played.sources)
    assert set() == set(played.sources) - listed_ids()


def test_most_scenarios_quote_the_documents_themselves() -> None:
    assert len([played for played in SCENARIOS.values() if QUOTED.search(played.exchange)]) > len(SCENARIOS) / 2
