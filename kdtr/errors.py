"""Errors: each names a place, what is wrong, what was wanted and what was found."""

from __future__ import annotations


class KdtrError(Exception):
    """An error a user can act on, printed as one line.

    Args:
        where: file, argument, op or tensor at fault.
        what: the fault, in a few words.
        want: the value or condition that was expected, or "" when there is none to name.
        got: the value that was found, or "".
        remedy: what to do about it, or "".
    """

    exit_code = 2

    def __init__(
        self, where: str, what: str, want: object = "", got: object = "", remedy: str = ""
    ) -> None:
        self.where, self.what, self.want, self.got, self.remedy = where, what, want, got, remedy
        text = f"{where}: {what}"
        if want != "":
            text += f", want {want}"
        if got != "":
            text += f", got {got}"
        if remedy:
            text += f" ({remedy})"
        super().__init__(text)

    def __reduce__(self) -> tuple[object, ...]:
        # Errors cross process borders; the constructor's arguments are more than the text.
        return _restore, (type(self), str(self), self.__dict__)


def _restore(kind: type[KdtrError], text: str, state: dict[str, object]) -> KdtrError:
    error = kind.__new__(kind, text)
    error.args = (text,)
    error.__dict__.update(state)
    return error


class FormatError(KdtrError):
    """A KDTR file breaks a rule of the format. `code` is the rule's name (`E_MAGIC`, ...).

    Raised by every reader entry point. `offset` is the byte at fault, or -1.
    """

    def __init__(
        self,
        where: str,
        code: str,
        what: str,
        want: object = "",
        got: object = "",
        offset: int = -1,
    ) -> None:
        self.code, self.offset = code, offset
        super().__init__(where, f"{code}: {what}", want, got)


class ContractError(KdtrError):
    """A case, a reference or a fixture does not fit its op's contract."""


class LockError(KdtrError):
    """Generated goldens differ from `goldens/LOCK`, or a published contract changed."""

    exit_code = 1


class EngineError(KdtrError):
    """An engine could not be loaded or broke the plug-in rules."""

    @classmethod
    def from_text(cls, text: str) -> EngineError:
        """The error of a line that native code has already put together."""
        where, _, what = text.partition(": ")
        return cls(where, what) if what else cls("engine", text)
