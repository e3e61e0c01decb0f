"""Errors as RFC 9457 problems; they never carry an exception's text."""

from collections.abc import Mapping
from http import HTTPStatus

from fastapi.responses import JSONResponse

from shadowrelay.admin import resources


def problem(status: int, detail: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """An answer that says what is wrong."""
    body = resources.Problem(title=HTTPStatus(status).phrase, status=status, detail=detail)
    return JSONResponse(body.model_dump(), status, headers, media_type="application/problem+json")
