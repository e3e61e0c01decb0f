"""The base of all tables of the configuration; `model/settings.py` has most of them. docs/design.md 7."""

from datetime import timedelta
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

MILLISECOND = timedelta(milliseconds=1)
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
LABEL = Field(min_length=1, max_length=64, pattern=r"^[!-~]+$")
Count = Annotated[int, Field(strict=True)]


class Section(BaseModel):
    """A table of the file: immutable, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)
