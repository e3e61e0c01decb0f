"""A log has the same rows in whatever form it was collected."""

import codecs
import gzip
import io

import pytest

from shadowrelay.model.tracking import EventId
from shadowrelay.sla.parse import LogFile
from tests.kit.log_files import a_log, an_event, read_log

LOG = a_log([an_event("m1", recipients=("ü@b", "c@d")), an_event("m1", EventId.SEND)])
TEXT = LOG.decode("utf-8")
FORMS = {
    "gzip": gzip.compress(LOG),
    "two archives in one": gzip.compress(LOG[:100]) + gzip.compress(LOG[100:]),
    "UTF-16 of PowerShell": codecs.BOM_UTF16_LE + TEXT.encode("utf-16-le"),
    "the other UTF-16": codecs.BOM_UTF16_BE + TEXT.encode("utf-16-be"),
    "without a mark": TEXT.encode("utf-16-le"),
    "UTF-16 packed": gzip.compress(codecs.BOM_UTF16_LE + TEXT.encode("utf-16-le")),
}


@pytest.mark.parametrize("form", FORMS)
def test_rows_and_their_ids_are_those_of_the_plain_log(form):
    assert read_log(LOG)[1:] == read_log(FORMS[form])[1:]
    assert 2 == len(read_log(LOG)[1])


def test_the_size_is_that_of_the_file_as_it_is_listed():
    packed = FORMS["gzip"]
    log = LogFile(io.BytesIO(packed), "mx1", "x")
    list(log)

    assert len(packed) == log.bytes


@pytest.mark.parametrize("cut", [12, -4])
def test_a_torn_archive_is_an_error_of_reading_that_says_so(cut):
    with pytest.raises(OSError, match="torn or damaged"):
        list(LogFile(io.BytesIO(FORMS["gzip"][:cut]), "mx1", "x"))


def test_half_a_character_of_utf16_ends_the_log_and_is_no_error():
    read_log(FORMS["UTF-16 of PowerShell"][:-3])
