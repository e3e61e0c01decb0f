"""The base of all tables of the configuration; `model/settings.py` has most of them. docs/design.md 7."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A table of the file: immutable, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)
