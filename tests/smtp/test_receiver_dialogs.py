"""Whole conversations: see `dialogs/*.dlg`."""

from pathlib import Path

import pytest

from tests.kit.dialog import play, read

DIALOGS = sorted((Path(__file__).parent / "dialogs").glob("*.dlg"))


@pytest.mark.parametrize("path", DIALOGS, ids=lambda path: path.stem)
async def test_the_dialog_goes_as_written(path: Path, tmp_path: Path) -> None:
    await play(read(path), tmp_path)


async def test_a_dialog_that_goes_another_way_fails(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.dlg"
    wrong.write_text("S: 220 ~\nC: NOOP\nS: 251 ~\n")

    with pytest.raises(AssertionError, match=r"expected '251 ~', got '250 2\.0\.0 OK'"):
        await play(read(wrong), tmp_path)
