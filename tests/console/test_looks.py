"""How often the nodes are asked for open pages, and how long a slow one is waited for."""

import asyncio

import pytest

from shadowrelay.cluster.answers import NodeAnswer
from shadowrelay.cluster.glance import look_closely
from shadowrelay.console import asking
from shadowrelay.console.asking import ClusterNodes
from shadowrelay.console.watching import FRESH_SECONDS, ClusterWatch
from shadowrelay.model.settings import Peer
from tests.admin.conftest import TOKEN
from tests.console.conftest import SETTINGS
from tests.kit.clock import until

PEER = Peer.model_validate({"name": "mx2", "site": "west", "address": "127.0.0.1:9", "admin": "http://127.0.0.1:9"})


class SlowNodes:
    """Nodes whose answers take as long as the test says."""

    def __init__(self):
        self.now, self.took, self.looks_count, self.may_answer = 0.0, 0.0, 0, asyncio.Event()
        self.may_answer.set()

    async def look(self, *, with_history):
        self.looks_count += 1
        number = self.looks_count
        await self.may_answer.wait()
        self.now += self.took
        return [NodeAnswer(f"look {number}")]

    def forget_looks(self):
        pass


@pytest.fixture
def slow():
    return SlowNodes()


@pytest.fixture
def watch(slow):
    return ClusterWatch(slow, lambda: slow.now)


async def test_a_look_that_took_long_is_no_younger_for_that(slow, watch):
    slow.took = 2 * FRESH_SECONDS
    await watch.answers()

    assert ["look 2"] == [answer.name for answer in await watch.answers()]


async def test_all_who_come_while_a_look_is_under_way_share_it(slow, watch):
    slow.took = 2 * FRESH_SECONDS
    slow.may_answer.clear()
    viewers = [asyncio.create_task(watch.answers()) for _ in range(20)]
    await until(lambda: slow.looks_count)
    slow.may_answer.set()

    assert {"look 1"} == {answer.name for each in await asyncio.gather(*viewers) for answer in each}


async def test_a_look_that_began_before_an_act_is_not_shown_after_it(slow, watch):
    slow.may_answer.clear()
    before = asyncio.create_task(watch.answers())
    await until(lambda: slow.looks_count)
    slow.now += FRESH_SECONDS / 4
    watch.forget()
    slow.may_answer.set()
    await before

    assert ["look 2"] == [answer.name for answer in await watch.answers()]


async def test_this_node_says_the_same_with_and_without_http(application):
    nodes = ClusterNodes(SETTINGS, application, TOKEN)
    (by_http,) = await nodes.ask(look_closely)
    (direct,) = await nodes.look(with_history=False)
    nodes.forget()

    assert by_http == direct


@pytest.fixture
def with_a_peer(application, monkeypatch):
    """This node and a peer, whose answers the test gives: `said` has them, None while it hangs."""
    nodes = ClusterNodes(SETTINGS.model_copy(update={"peers": (PEER,)}), application, TOKEN)
    said = {"answers": asyncio.Queue(), "asked": 0}

    async def look_at(name, with_history):
        said["asked"] += 1
        return await said["answers"].get()

    monkeypatch.setattr(nodes, "_look_at", look_at)
    monkeypatch.setattr(asking, "SLOW_SECONDS", 0.02)
    return nodes, said


async def test_a_peer_that_hangs_holds_up_no_look_and_its_last_answer_counts_for_a_while(with_a_peer, monkeypatch):
    nodes, said = with_a_peer
    said["answers"].put_nowait(NodeAnswer("mx2", {"node": {"name": "mx2"}}))
    first = await nodes.look(with_history=False)
    second = await nodes.look(with_history=False)
    third = await nodes.look(with_history=False)
    monkeypatch.setattr(asking, "PATIENCE_SECONDS", 0.0)
    given_up = await nodes.look(with_history=False)

    assert first[1].said == second[1].said == third[1].said
    assert 2 == said["asked"]
    assert "did not answer" in given_up[1].error


async def test_what_a_peer_says_late_is_in_the_next_look(with_a_peer):
    nodes, said = with_a_peer
    said["answers"].put_nowait(NodeAnswer("mx2", error="refused"))
    await nodes.look(with_history=False)
    await nodes.look(with_history=False)
    said["answers"].put_nowait(NodeAnswer("mx2", {"node": {"name": "mx2"}}))

    assert not (await nodes.look(with_history=False))[1].error


async def test_an_error_that_nobody_expected_stands_in_the_way_of_one_look_only(with_a_peer, monkeypatch):
    nodes, said = with_a_peer

    async def fail(name, with_history):
        raise LookupError("a bug")

    with monkeypatch.context() as patched:
        patched.setattr(nodes, "_look_at", fail)
        with pytest.raises(LookupError):
            await nodes.look(with_history=False)
    said["answers"].put_nowait(NodeAnswer("mx2", {"node": {"name": "mx2"}}))

    assert not (await nodes.look(with_history=False))[1].error


def a_drain(undelivered, handed, moved, state="draining", targets=()):
    counts = {"undelivered_count": undelivered, "handed_over_count": handed, "moved_count": moved}
    return {"state": state, "since": "2026-11-21T10:00:00Z", "targets": list(targets), **counts}


@pytest.mark.parametrize(
    ("state", "steps", "shown"),
    [
        ("draining", [(39, 0, 50), (0, 39, 89), (0, 10, 89), (0, 0, 89)], [(0, 39), (0, 39), (29, 39), (39, 39)]),
        ("redirecting", [(5, 34, 34), (0, 10, 39), (0, 0, 39)], [(0, 39), (29, 39), (39, 39)]),
    ],
)
def test_the_progress_of_a_drain_counts_each_message_once(watch, state, steps, shown):
    """50 were moved by an earlier redirect; what is handed over counts as moved at once, and is done when it is taken over."""
    found = []
    for step in steps:
        nodes = [{"name": "mx1", "drain": a_drain(*step, state, ["mx2"])}]
        watch._note_drains(nodes)
        found.append((nodes[0]["drain"]["done"], nodes[0]["drain"]["most"]))

    assert shown == found
    assert nodes[0]["drain"]["to"] == (["mx2"] if state == "redirecting" else [])


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({"fewer_count": 10, "lost_held_count": 10}, "when the servers that do not answer are back, or taken over"),
        ({"fewer_count": 0, "lost_held_count": 0}, ""),
        ({"fewer_count": 3, "lost_held_count": 1, "new_mail": {"tone": "bad"}}, "not before a peer takes copies"),
    ],
)
def test_what_is_held_for_a_lost_server_is_redundant_again_when_that_is_back(watch, found, said):
    watch._note(found["fewer_count"] - found["lost_held_count"])

    assert said == watch._heals(found)


def test_the_time_to_heal_follows_the_rate_at_which_copies_are_made(slow, watch):
    watch._note(100)
    slow.now += 10
    watch._note(50)

    assert "in about 10s, at the present rate" == watch._heals({"fewer_count": 50, "lost_held_count": 0, "new_mail": {"tone": "good"}})
