"""What a masked language model puts in the place of [MASK]."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rotary.data.draws import bits
from rotary.data.text import Document
from rotary.data.vocabulary import load_tokenizer
from rotary.errors import DataError, RunError


@dataclass(frozen=True)
class Guess:
    """A token and how probable the model finds it."""

    token: str
    probability: float


@dataclass(frozen=True)
class Sample:
    """A real sentence with one word masked.

    Attributes:
        before, word, after: The sentence around the word, and the word.
        guesses: The model's, best first.
    """

    before: str
    word: str
    after: str
    guesses: list[Guess]


def load_model(folder: str | Path) -> tuple[Any, Any]:
    """The model and the tokenizer of a run folder, ready to guess.

    Raises:
        RunError: If there is no such folder, or no model in it that can be loaded.
        ConfigError: If the tokenizer in it is another model's.
    """
    from rotary.models.roformer import RoFormerForMaskedLM, check_fits

    path = Path(folder)
    if not path.is_dir():
        if path.exists():
            raise RunError(f"{folder}: this is a file; give the folder of the model.")
        raise RunError(f"{folder}: there is no such folder; `rotary pretrain --output` makes one.")
    for name in ("config.json", "model.safetensors"):
        if not (path / name).is_file():
            hint = " (the run in it has not finished)" if (path / "run.toml").is_file() else ""
            raise RunError(f"{folder}: there is no model in this folder{hint}: {name} is missing.")
    try:
        model = RoFormerForMaskedLM.from_pretrained(path, use_safetensors=True)
    except Exception as error:  # Whatever transformers and safetensors raise on damaged files.
        reason = " ".join(str(error).split())
        raise RunError(f"{folder}: its model cannot be loaded: {reason}") from error
    tokenizer = load_tokenizer(path)
    check_fits(tokenizer, model)
    return model.eval(), tokenizer


@torch.no_grad()
def fill_mask(model: Any, tokenizer: Any, text: str, *, top: int) -> list[list[Guess]]:
    """The best tokens for each mask of a text.

    Args:
        model: A ``RoFormerForMaskedLM``.
        tokenizer: Its tokenizer.
        text: Text with one mask token or more.
        top: How many guesses for each.

    Returns:
        For each mask, in order, the best tokens, best first; special tokens are not among them.

    Raises:
        DataError: If the text has no mask token.
    """
    if tokenizer.mask_token not in text:
        raise DataError(
            f"there is no {tokenizer.mask_token} in the text {text!r}; write it where a word is "
            "to be guessed."
        )
    # A tokenizer of bytes takes "[MASK]" for six characters unless told otherwise.
    encoded = tokenizer(text, return_tensors="pt", split_special_tokens=False)
    ids = encoded["input_ids"].to(model.device)
    logits = model(input_ids=ids).logits[0, ids[0] == tokenizer.mask_token_id].float()
    # Padding and masks are no words; a young model may guess them.
    special = [token for token in tokenizer.all_special_ids if token < logits.shape[-1]]
    logits[:, special] = -torch.inf
    best = logits.softmax(dim=-1).topk(min(top, logits.shape[-1] - len(special)))
    return [
        [
            Guess(tokenizer.convert_ids_to_tokens(int(token)), float(probability))
            for probability, token in zip(probabilities, tokens, strict=True)
        ]
        for probabilities, tokens in zip(best.values, best.indices, strict=True)
    ]


# Ends of sentences, Chinese full stops among them, and blank lines.
_SENTENCE = re.compile("(?<=[.!?\u3002\uff01\uff1f])\\s+|(?<=[\u3002\uff01\uff1f])|\\n\\s*\\n")
_WORD = re.compile(r"[^\W\d_]{4,}")


def sample(
    model: Any, tokenizer: Any, documents: Sequence[Document], *, count: int, top: int, seed: int
) -> list[Sample]:
    """Mask a word in sentences drawn from the documents, and let the model guess.

    Sentences and words are drawn, not chosen: what is shown is how good the model is. Drawn words
    have four letters or more and are one token, so that one guess can be right.

    Args:
        model: A ``RoFormerForMaskedLM``.
        tokenizer: Its tokenizer.
        documents: Validation documents.
        count: How many sentences; fewer if there are not so many.
        top: How many guesses for each.
        seed: Of the draw.
    """
    sentences = _sentences(documents)
    order = bits(len(sentences), seed=seed, purpose="sample sentences").argsort(kind="stable")
    vocabulary = tokenizer.get_vocab()
    samples: list[Sample] = []
    for row in order:
        text = sentences[row]
        words = [
            match
            for match in _WORD.finditer(text)
            if len(tokens := tokenizer.tokenize(match[0])) == 1
            and tokens[0] in vocabulary
            and tokens[0] != tokenizer.unk_token
        ]
        if not words:
            continue
        draw = int(bits(1, seed=seed, purpose="sample word", row=int(row))[0] % len(words))
        begin, end = words[draw].span()
        masked = f"{text[:begin]}{tokenizer.mask_token}{text[end:]}"
        guesses = fill_mask(model, tokenizer, masked, top=top)[0]
        samples.append(Sample(text[:begin], text[begin:end], text[end:], guesses))
        if len(samples) == count:
            break
    return samples


def _sentences(documents: Sequence[Document]) -> list[str]:
    """Sentences of a readable length, each once, in the order of the documents."""
    found: dict[str, None] = {}
    for document in documents:
        for piece in _SENTENCE.split(document.text):
            sentence = " ".join(piece.split())
            letters = sum(character.isalpha() or character.isspace() for character in sentence)
            if 40 <= len(sentence) <= 140 and letters >= 0.9 * len(sentence):
                found[sentence] = None
    return list(found)
