"""Third-party chatter off the screen; warnings and errors stay."""

from __future__ import annotations

import os


def quieten() -> None:
    """Turn off progress bars of transformers, and the notice of tokenizers about forks.

    The notice asks to say whether tokenizers may use threads. They may: text is tokenised before
    worker processes are forked, and those do not tokenise.
    """
    from transformers.utils import logging

    logging.disable_progress_bar()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
