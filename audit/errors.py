"""The harness's exceptions, by what the command line does with them.

A user's mistake is one line on stderr and exit code 2; evidence that cannot
decide is exit code 3. Anything else is a bug and keeps its traceback.
"""

from __future__ import annotations


class UserError(Exception):
    """Bad input: the message names the file, the place and the mend. Exit code 2."""


class CannotDecide(Exception):
    """Evidence missing, stale or unreadable. Exit code 3."""
