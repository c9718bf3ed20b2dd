"""Ctrl-C and the termination signal as a request: stop after this step, with a checkpoint."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """Within this context a first SIGINT or SIGTERM is noted; a second acts as it always does.

    Example:
        >>> with StopRequest() as request:
        ...     signal.raise_signal(signal.SIGTERM)
        ...     request.signal == signal.SIGTERM
        True
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._restore()

    def note(self, number: int) -> None:
        """Note a request, for instance one that reached another process."""
        self.signal = signal.Signals(number)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.note(number)
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
