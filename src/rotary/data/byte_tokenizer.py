"""A tokenizer whose tokens are the bytes of UTF-8: nothing to train, nothing unknown, exact."""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

BYTES = "bytes"
"""The name of this tokenizer where a run asks for one."""

NUM_BYTES = 256
SPECIAL_TOKENS = ("[PAD]", "[CLS]", "[SEP]", "[MASK]")


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Make the byte tokenizer: token ``b`` is byte ``b``, and 256 to 259 are ``SPECIAL_TOKENS``.

    A real tokenizer of Hugging Face: ``save_pretrained`` writes a ``tokenizer.json`` that
    ``AutoTokenizer`` reads without code of ours. Any text comes back exactly as it was. A text that
    says ``[MASK]`` means these six characters, unless it is encoded with
    ``split_special_tokens=False``.

    Returns:
        A tokenizer that puts ``[CLS]`` and ``[SEP]`` around a text and knows no maximal length.

    Example:
        >>> tokenizer = byte_tokenizer()
        >>> tokenizer("q\u00e9", add_special_tokens=False)["input_ids"]
        [113, 195, 169]
        >>> tokenizer.decode([113, 195, 169])
        'q\u00e9'
    """
    vocabulary = {character: byte for byte, character in enumerate(_alphabet())}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, normalized=False) for token in SPECIAL_TOKENS])
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, backend.token_to_id(token)) for token in ("[CLS]", "[SEP]")],
    )
    pad, begin, end, mask = SPECIAL_TOKENS
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=pad,
        cls_token=begin,
        sep_token=end,
        mask_token=mask,
        split_special_tokens=True,
        clean_up_tokenization_spaces=False,
    )


def is_byte_tokenizer(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether the first tokens are the bytes, so that losses may be counted in bits per byte."""
    names = tokenizer.convert_ids_to_tokens(list(range(min(NUM_BYTES, len(tokenizer)))))
    return bool(names == _alphabet())


def _alphabet() -> list[str]:
    """The character that stands for each byte in ``tokenizers``' byte-level parts.

    Printable characters of Latin-1 stand for themselves, the other bytes for those from U+0100 on.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(NUM_BYTES)]
