"""Third-party chatter off the screen; their warnings and errors stay."""

from __future__ import annotations

import os


def quieten() -> None:
    """Turn off progress bars and notes of transformers and datasets, not their warnings.

    The tokenizers' fork notice is answered by what it asks for: their own threads are off once
    worker processes are forked, which is after the text was tokenised.
    """
    import datasets
    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_warning()
    transformers_logging.disable_progress_bar()
    datasets.utils.logging.set_verbosity_warning()
    datasets.disable_progress_bars()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
