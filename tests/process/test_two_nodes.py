"""Two sections of docs/operations.md do what they say when their blocks are pasted into a shell: "Two nodes in ten minutes", and "The
previous hop keeps the shadow"."""

import re
from pathlib import Path

import pytest

from tests.kit.pasting import blocks, pasted

pytestmark = [pytest.mark.slow]


def test_two_nodes_work_as_it_is_written(tmp_path: Path) -> None:
    _, make, start, *others = blocks("## Two nodes in ten minutes")  # without the first, which sets a checkout up
    said, sent, destroyed, told = pasted(tmp_path, [make + start, *others])

    assert "is valid, 0 warnings" in said
    assert re.search(r"Shadow\\\S+ .* 1 ", sent)
    assert "you@example.org" in destroyed
    assert re.search(r"Delivered by mx1\.west\.example after takeover from mx1\.east\.example, \d\d:\d\d:\d\d\n", told)
    assert "took over from mx1.east.example, which came back with another queue database" in told


@pytest.mark.heavy
def test_an_edge_that_keeps_the_shadow_works_as_it_is_written(tmp_path: Path) -> None:
    said, sent, told = pasted(tmp_path, blocks("### The previous hop keeps the shadow"))

    assert "is valid, 0 warnings" in said
    assert "New mail is redundant; no copies are made on edge.dmz.example, as" in said
    assert re.search(r"Shadow\\\S+ .* 1 .* hub\.corp\.example|Shadow\\hub\S* .* 1 ", sent)
    assert re.search(r"At hub\.corp\.example as [0-9a-f-]{36}: Delivered by hub\.corp\.example, \d\d:\d\d:\d\d\n", told)
    assert "took over from hub.corp.example, which came back with another queue database" in told
    assert "found it in its queue at its start" not in told  # it came by TRACK, with the time of the first hop
