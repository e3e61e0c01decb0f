"""The envelope of an exported message as header lines, in the form of Exchange's Replay directory. Source: msd-rep

`X-Sender` and `X-Receiver` carry the envelope with its DSN parameters, and `X-EndOfInjectedXHeaders` ends the lines that do not belong to
the message; whoever submits the file again removes them. Only the recipients that are not done are listed: the others have the message.
"""

from shadowrelay.model.message import Envelope, Ordinals

CREATED_BY = "shadowrelay"


def format_envelope_lines(envelope: Envelope, done: Ordinals) -> bytes:
    """Whole header lines with CRLF."""
    source = [("X-CreatedBy", CREATED_BY), ("X-Source", "SMTP")]
    if envelope.client_name:
        source.append(("X-HeloDomain", envelope.client_name))
    if envelope.client_address:
        source.append(("X-SourceIPAddress", envelope.client_address))
    sender = _with_parameters(f"<{envelope.sender}>", BODY=str(envelope.body), RET=envelope.ret, ENVID=envelope.envid)
    recipients = [
        ("X-Receiver", _with_parameters(f"<{recipient.address}>", NOTIFY=recipient.notify, ORCPT=recipient.orcpt))
        for ordinal, recipient in enumerate(envelope.recipients, start=1)
        if ordinal not in done
    ]
    lines = [*source, ("X-Sender", sender), *recipients, ("X-EndOfInjectedXHeaders", "")]
    return "".join(f"{name}: {_one_line(value)}\r\n" for name, value in lines).encode("utf-8", "replace")


def _with_parameters(address: str, **parameters: str | None) -> str:
    return " ".join([address, *[f"{name}={value}" for name, value in parameters.items() if value]])


def _one_line(value: str) -> str:
    """No parser lets a control character into an envelope; a damaged queue database could."""
    return "".join(one if one >= " " and one != "\x7f" else "?" for one in value)
