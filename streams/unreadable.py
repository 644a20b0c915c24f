"""What msgspec raises of bytes that are not what they should be.

Strings that are not UTF-8, and what is nested thousands of times, are told by errors that are none of its own: whoever
reads what others wrote, or what a broken disk gives back, catches all three.
"""

from __future__ import annotations

from typing import Final

import msgspec

UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
