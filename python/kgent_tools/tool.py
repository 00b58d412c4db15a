"""What the author of a tool in Python needs."""

__all__ = ["ToolFailure"]


class ToolFailure(Exception):
    """What a handler raises when it cannot do what it was asked: the call ends as a failed result, not as a defect."""

    def __init__(self, message: str, hint: str | None = None, code: str = "failed") -> None:
        """Says what was wrong and, in `hint`, what to send instead; `code` is one of the stable error codes."""
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.code = code

    def __reduce__(self) -> tuple[type["ToolFailure"], tuple[str, str | None, str]]:
        return type(self), (self.message, self.hint, self.code)
