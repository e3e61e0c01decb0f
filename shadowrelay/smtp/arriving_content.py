"""A client's content on its way, by DATA or in the chunks of BDAT, until it is a message. RFC 5321 4.1.1.4, RFC 3030.

The `Receiver` reads; here stands what becomes of the octets: our trace header, the sink, the checks of `DataFilter`, and the envelope that
goes with them. What is refused leaves nothing behind.
"""

from collections.abc import Sequence

from shadowrelay.model.ids import MessageId
from shadowrelay.model.message import BodyType, Content, Envelope, Recipient
from shadowrelay.model.replies import INSUFFICIENT_RESOURCES, Reply
from shadowrelay.protocol.fields import MailValues
from shadowrelay.protocol.original_client import NOBODY, OriginalClient, format_original_client
from shadowrelay.smtp.data import ContentSink, DataFilter, beginning_of, has_text_header, header_facts, protocol_name, trace_header
from shadowrelay.smtp.limits import BINARY_HEADER, CIRCLE, LOOP
from shadowrelay.smtp.reception import Reception, SessionState


class ContentRefused(Exception):
    """The content is read and not taken; `reply` says why."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(str(reply))
        self.reply = reply


class ArrivingContent:
    """One content. `is_chunked`: it comes by BDAT; with BODY=BINARYMIME its octets may be any."""

    def __init__(
        self,
        reception: Reception,
        state: SessionState,
        message_id: MessageId,
        values: MailValues,
        recipients: list[Recipient],
        *,
        is_extended: bool,
        is_chunked: bool = False,
    ) -> None:
        self.message_id = message_id
        self._reception, self._state, self._values = reception, state, values
        self._is_binary = values.body is BodyType.BINARY_MIME
        self.sink = ContentSink(f"{reception.spool}/{message_id}.part", reception.budget.portion(), reception.descriptors)
        client = (state.named.helo or state.client_name, state.address)
        protocol = protocol_name(is_extended=is_extended, smtputf8=values.smtputf8, is_encrypted=bool(state.tls))
        self.trace = trace_header(reception.name, protocol, message_id, client, recipients, reception.clock.now())
        self.data = DataFilter(
            self.sink,
            reception.connector.max_message_size,
            self.trace,
            takes_long_lines=reception.connector.lenient_addresses,
            is_stuffed=not is_chunked,
            is_binary=self._is_binary,
        )
        self.discard = self.sink.discard

    def complete(self, sender: str, recipients: Sequence[Recipient], original: OriginalClient) -> tuple[Envelope, Content]:
        """The message, once its end was read. Raises: ContentRefused."""
        reception, state, values = self._reception, self._state, self._values
        try:
            if (refusal := self.data.refusal) is not None:
                raise ContentRefused(refusal)
            content = self.sink.content(is_checked=not self._is_binary)
            beginning = beginning_of(content, len(self.trace))
            facts = header_facts(beginning, reception.name, self.trace)
            if facts.hop_count > reception.connector.max_hop_count:
                raise ContentRefused(LOOP)
            if facts.is_in_circles:
                raise ContentRefused(CIRCLE)
            if self._is_binary and not has_text_header(beginning):
                raise ContentRefused(BINARY_HEADER)
        except ContentRefused:
            self.discard()
            raise
        except OSError:
            self.discard()
            raise ContentRefused(INSUFFICIENT_RESOURCES) from None
        return Envelope(
            message_id=self.message_id,
            sender=sender,
            recipients=tuple(recipients),
            arrived_at=reception.clock.now(),
            body=values.body if self.data.is_ascii or self._is_binary else BodyType.EIGHT_BIT_MIME,  # whether declared or not
            smtputf8=values.smtputf8,
            ret=values.ret,
            envid=values.envid,
            client_address=original.address or state.address,
            client_name=original.helo or state.client_name,
            original_client=format_original_client(original) if original is not NOBODY else "",
            connector=reception.connector.name,
            internet_message_id=facts.internet_message_id,
            subject=facts.subject,
            date="" if facts.has_own_trace else facts.date,  # not detected as a duplicate: a loop ends with a DSN
            fingerprint=self.data.fingerprint.digest(),
        ), content
