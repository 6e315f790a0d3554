"""Errors that a user can cause."""


class UserError(Exception):
    """Something the user can put right: one line that says what is wrong, where, and the remedy.

    The command line prints the message without a traceback and ends with exit status 2.
    """


INTERRUPTED = "was interrupted"  # what other ranks are told of a rank that somebody stopped by hand


def interrupted(error: BaseException) -> bool:
    """Whether somebody pressed ctrl-C: here, under whatever was raised in consequence, or on another rank."""
    seen: list[BaseException] = []
    following: BaseException | None = error
    while following is not None and following not in seen:
        if isinstance(following, KeyboardInterrupt):
            return True
        if isinstance(following, RankFailed) and INTERRUPTED in str(following):
            return True
        seen.append(following)
        following = following.__cause__ or following.__context__
    return False


class NotAvailableYet(UserError):
    """A flag whose mechanism is not built yet; refused, never ignored."""


class RankFailed(RuntimeError):
    """Another rank ended, failed or did not come in time: this one cannot go on. The message names rank and place."""
