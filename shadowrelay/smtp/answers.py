"""The replies of the receiver, named for the situation. None repeats what the client wrote.

5xx only where the client is at fault and would be again; whatever is our trouble is 4xx.
"""

from shadowrelay.model.replies import Reply

# of any session
UNKNOWN_COMMAND = Reply(500, "5.5.1", "Command not recognized")
NOT_IMPLEMENTED = Reply(502, "5.5.1", "Command not implemented")
NOT_UTF8 = Reply(501, "5.5.2", "Argument is not UTF-8")
NO_SMTP_CLIENT = Reply(421, "4.7.0", "This is not an HTTP server")
TOO_MANY_SESSIONS = Reply(421, "4.3.2", "Too many sessions, try again later")
TOO_MANY_SESSIONS_OF_ADDRESS = Reply(421, "4.7.0", "Too many sessions from your address, try again later")
TOO_MANY_ERRORS = Reply(421, "4.7.0", "Too many protocol errors")
TOO_MANY_RECIPIENTS = Reply(452, "4.5.3", "Too many recipients")  # RFC 5321 4.5.3.1.10
TIMED_OUT = Reply(421, "4.4.2", "Timeout, closing connection")
SHUTTING_DOWN = Reply(421, "4.3.2", "Service shutting down, closing connection")
COMMAND_TOO_LONG = Reply(500, "5.5.2", "Command line too long")
LINE_TOO_LONG = Reply(554, "5.6.0", "Line too long")
MESSAGE_TOO_BIG = Reply(552, "5.3.4", "Message size exceeds the limit")
BARE_CR_OR_LF = Reply(521, "5.5.2", "Bare CR or LF is not allowed")  # the session is closed with it

# to mail
OK = Reply(250, "2.0.0", "OK")
SENDER_OK = Reply(250, "2.1.0", "Sender OK")
RECIPIENT_OK = Reply(250, "2.1.5", "Recipient OK")
START_DATA = Reply(354, "", "End data with <CR><LF>.<CR><LF>")
START_TLS = Reply(220, "2.0.0", "Ready to start TLS")
BYE = Reply(221, "2.0.0", "Bye")
HELP = Reply(214, "2.0.0", "See RFC 5321")
CANNOT_VERIFY = Reply(252, "2.5.0", "Cannot VRFY user, but will accept message and attempt delivery")
BAD_HELLO_NAME = Reply(501, "5.5.4", "Syntax: EHLO or HELO, and your host name")
NO_ARGUMENT_ALLOWED = Reply(501, "5.5.4", "No argument allowed")
ARGUMENT_NEEDED = Reply(501, "5.5.4", "Argument needed")
HELLO_FIRST = Reply(503, "5.5.1", "Send EHLO or HELO first")
NESTED_MAIL = Reply(503, "5.5.1", "Nested MAIL command")
MAIL_FIRST = Reply(503, "5.5.1", "Need MAIL command first")
RCPT_FIRST = Reply(503, "5.5.1", "Need RCPT command first")
NO_VALID_RECIPIENTS = Reply(554, "5.5.1", "No valid recipients")  # RFC 2920 3.1
TLS_IS_ACTIVE = Reply(503, "5.5.1", "TLS is already active")
UNKNOWN_PARAMETER = Reply(555, "5.5.4", "Parameter not recognized or not implemented")
BAD_PARAMETER = Reply(501, "5.5.4", "Bad parameter value")
RELAYING_DENIED = Reply(550, "5.7.1", "Relaying denied")
NO_POSTMASTER = Reply(550, "5.1.1", "No postmaster without a domain here")
LOOP = Reply(554, "5.4.6", "Too many hops, message loops")  # RFC 3463 X.4.6
OUT_OF_STEP = Reply(421, "4.7.0", "Protocol synchronization error")  # octets where RFC 2920 allows none
FAILED_IN_CONTENT = Reply(421, "4.3.0", "Local error in processing, closing connection")

# to peers
AUTHENTICATION_NEEDED = Reply(530, "5.7.0", "Authentication required")
NOT_YOUR_NAME = Reply(550, "5.7.1", "You have not proved that name, or it is no peer's")
OTHER_BOUNDARY = Reply(550, "5.7.1", "Another transport high availability boundary")
XSHADOW_FIRST = Reply(503, "5.5.1", "Send XSHADOW server=... first")
IN_TRANSACTION = Reply(503, "5.5.1", "Not in a transaction")
NO_HOLD = Reply(503, "5.5.1", "No shadow copy is on its way")
HOLD_HAS_FAILED = Reply(503, "5.5.1", "The shadow copy has failed already")
BDAT_WANTED = Reply(503, "5.5.1", "The content of a shadow copy comes by BDAT")
HOLD_IS_INCOMPLETE = Reply(503, "5.5.1", "A shadow copy needs recipients and XSHADOW ENVELOPE")
BAD_CHUNK = Reply(501, "5.5.4", "Syntax: BDAT <size>; closing connection")
NOT_WHAT_WAS_SENT = Reply(451, "4.5.0", "Size or SHA-256 differs from what was received")
HOLD_NOT_OFFERED = Reply(452, "4.3.1", "No shadow copies are taken now")
ENVELOPE_OK = Reply(250, "2.0.0", "Envelope OK")
