"""Errors that a user can cause."""


class UserError(Exception):
    """Something the user can put right: one line that says what is wrong, where, and the remedy.

    The command line prints the message without a traceback and ends with exit status 2.
    """


class NotAvailableYet(UserError):
    """A flag whose mechanism is not built yet; refused, never ignored."""


class RankFailed(RuntimeError):
    """Another rank ended, failed or did not come in time: this one cannot go on. The message names rank and place."""
