"""Whole numbers in text from outside: replies, EHLO keywords, headers, DNS. Nothing else turns such text into a number. RFC 1870 3

Python refuses to convert more than 4,300 digits, with an exception where none is expected, takes digits of other scripts for digits, and
spaces and underscores for nothing.
"""

DIGITS_MAX = 20  # RFC 1870 3; no number in any of our protocols is longer


def decimal(text: str, highest: int | None = None) -> int | None:
    """The number, or `None` if the text is not one to 20 ASCII digits and nothing else, or if it is above `highest`."""
    if not 0 < len(text) <= DIGITS_MAX or not (text.isascii() and text.isdigit()):
        return None
    value = int(text)
    return None if highest is not None and value > highest else value
