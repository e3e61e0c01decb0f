"""`token`: makes the token of a person, and the table for the configurations. docs/reference.md "People and roles"."""

import secrets
from typing import Annotated

import typer

from shadowrelay.cli.output import AsJson, print_json, say
from shadowrelay.model.settings import AdminRole, AdminUser


def token(
    name: Annotated[str, typer.Option("--name", help="Under which the person acts: in listings, the operator log and the audit page.")],
    role: Annotated[AdminRole, typer.Option("--role", help="What the person may do.")] = AdminRole.VIEWER,
    as_json: AsJson = False,
) -> None:
    """Make a person's token, and the table of it for all nodes."""
    from shadowrelay.admin.people import hashed

    made = secrets.token_urlsafe(32)
    try:
        user = AdminUser(name=name, role=role, token_hash=hashed(made))
    except ValueError as exc:
        raise typer.BadParameter(
            f"{name!r} is no name; letters, digits, spaces and ._@- make one, 64 at most", param_hint="--name"
        ) from exc
    if as_json:
        print_json({"token": made, "name": user.name, "role": user.role.value, "token_hash": user.token_hash})
        return
    say(f"The token, for {name} alone; it is kept nowhere else:", "", f"    {made}", "", "For the configuration of each node:", "")
    say("[[admin.users]]", f'name = "{user.name}"', f'role = "{user.role.value}"', f'token_hash = "{user.token_hash}"')
