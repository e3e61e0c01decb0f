"""A torn checkpoint is named with what to do."""

import pytest

from shadowrelay.sla.checkpoints import CheckpointTorn, require_whole
from shadowrelay.sla.storage import located
from shadowrelay.sla.stream import _run_id
from shadowrelay.sla.watch import LoopStep

WHOLE = {
    "metadata": '{"id":"1"}', "offsets/0": 'v1\n{"batchWatermarkMs":0}\n{"logOffset":0}', "offsets/1": 'v1\n{"batchWatermarkMs":0}\n-',
    "commits/0": 'v1\n{"nextBatchWatermarkMs":0}', "sources/0/0": 'v1\n{"path":"a","timestamp":1,"batchId":0}', "sources/0/9.compact": "v1",
    "offsets/.0.crc": "", "state/0/0/1.zip": "",
}  # fmt: skip


@pytest.fixture
def checkpoint(tmp_path):
    for name, text in WHOLE.items():
        path = tmp_path / "ingest" / "checkpoint" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "ingest" / "checkpoint"


def test_a_whole_one_and_none_at_all_are_taken(checkpoint, tmp_path):
    require_whole(str(checkpoint), "")
    require_whole(str(tmp_path / "none"), "")


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("offsets/1", b""), ("offsets/1", b"v1\n"), ("commits/0", b'v1\n{"next'), ("metadata", b""), ("sources/0/0", b"\0"),
        ("offsets/0", b"\xff"),
    ],
)  # fmt: skip
def test_a_torn_file_is_named_with_the_remedy(checkpoint, name, data):
    (checkpoint / name).write_bytes(data)

    with pytest.raises(CheckpointTorn, match=f"{name}: torn or damaged, so that Spark cannot go on: delete it"):
        require_whole(str(checkpoint), "delete it")


def test_a_step_that_meets_one_is_not_tried_again():
    def torn():
        raise CheckpointTorn("offsets/1")

    with pytest.raises(CheckpointTorn):
        LoopStep("ingest", torn, lambda _: None).run()


def test_without_its_checkpoint_the_names_of_batches_begin_anew(checkpoint, tmp_path):
    (tmp_path / "ingest" / "id").write_text("0123abcd")
    assert "0123abcd" == _run_id(str(tmp_path))
    files, path = located(str(checkpoint))
    files.rm(path, recursive=True)

    assert "0123abcd" != _run_id(str(tmp_path))
