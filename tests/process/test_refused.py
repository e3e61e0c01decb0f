"""What a client reads that a node refuses because no copy can be made. docs/design.md 5"""

from pathlib import Path

from tests.kit.clients import talking_to
from tests.kit.processes import a_node_process, operator_events


async def test_the_451_of_a_node_has_the_words_of_exchange(tmp_path: Path) -> None:
    """Source: seed-000"""
    node = a_node_process(tmp_path / "a.example", tables="[transport]\nreject_message_on_shadow_failure = true\n")
    try:
        await node.start()
        async with talking_to(node.address) as client:
            reply = await client.mail(["user@here.example"])
    finally:
        await node.stop()

    assert "451 4.4.0 Message failed to be made redundant" == reply.strip()
    assert not operator_events(node, "message.failed")
