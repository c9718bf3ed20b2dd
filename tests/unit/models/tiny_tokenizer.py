"""A word tokenizer of fifteen words."""

import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "small", "cat", "sat", "on"]
WORDS += ["the", "old", "mat", "and", "slept"]


def save_tokenizer(folder):
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    core.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    names = ("pad", "unk", "cls", "sep", "mask")
    special = {f"{name}_token": f"[{name.upper()}]" for name in names}
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=core, **special)
    tokenizer.save_pretrained(folder)
    return tokenizer
