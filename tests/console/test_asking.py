"""The clients with which a console asks the nodes: kept from one look to the next, as long as they are of use."""

import itertools

import pytest

from shadowrelay.console.asking import IDLE_MAX, KEPT_SECONDS, KeptClients


class NumberedClient:
    """Of a node that may fail."""

    def __init__(self, number):
        self.number, self.has_failed, self.is_closed = number, False, False

    def close(self):
        assert not self.is_closed
        self.is_closed = True


class Maker:
    """Makes them, with a clock."""

    def __init__(self):
        self.now, self.made, self._numbers = 0.0, [], itertools.count()
        self.kept = KeptClients(lambda: self.now)

    def client(self, name="mx2"):
        return self.kept.client(name, self._make)

    def _make(self):
        self.made.append(NumberedClient(next(self._numbers)))
        return self.made[-1]


@pytest.fixture
def maker():
    return Maker()


def test_a_client_is_used_again_for_the_same_node(maker):
    for name in ("mx2", "mx3", "mx2"):
        with maker.client(name) as client:
            assert not client.is_closed

    assert 2 == len(maker.made)


def test_two_who_ask_at_once_have_one_each(maker):
    with maker.client() as one, maker.client() as other:
        assert one is not other


def test_one_that_failed_is_closed_and_the_next_look_makes_another(maker):
    with maker.client() as client:
        client.has_failed = True
    assert client.is_closed

    with maker.client() as again:
        assert again is not client


def test_an_old_one_is_made_anew_so_that_new_certificates_and_tokens_count(maker):
    with maker.client() as client:
        pass
    maker.now = KEPT_SECONDS
    with maker.client() as again:
        assert client.is_closed
        assert again is not client


def test_no_more_are_kept_than_are_of_use(maker):
    with maker.client(), maker.client(), maker.client():
        pass

    assert IDLE_MAX == sum(not client.is_closed for client in maker.made)


def test_in_the_end_all_are_closed_also_one_in_use(maker):
    with maker.client():
        pass
    with maker.client() as used:
        maker.kept.close()
        assert not used.is_closed
    with maker.client():
        pass
    maker.kept.close()

    assert [] == [client.number for client in maker.made if not client.is_closed]
