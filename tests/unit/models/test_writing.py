"""Writing on from a prompt: what is text and what is not."""

import re

import pytest
import torch
from tiny_tokenizer import WORDS, save_tokenizer
from tools_support import tiny

from rotary.errors import ConfigError
from rotary.models import RoFormerForCausalLM
from rotary.models.writing import continue_text


def writer(tmp_path, word):
    """A model that always writes one word."""
    model = tiny(RoFormerForCausalLM, is_decoder=True, vocab_size=len(WORDS), eos_token_id=None)
    with torch.no_grad():
        model.cls.predictions.bias[WORDS.index(word)] = 1e4
    return model, save_tokenizer(tmp_path)


def test_what_is_written_follows_the_prompt(tmp_path):
    text = continue_text(*writer(tmp_path, "cat"), "the small", max_new_tokens=3)
    assert text == "the small cat cat cat"


def test_the_token_that_ends_a_text_is_no_text(tmp_path):
    assert continue_text(*writer(tmp_path, "[SEP]"), "the cat", max_new_tokens=5) == "the cat"


def test_special_tokens_are_never_drawn(tmp_path):
    text = continue_text(*writer(tmp_path, "[MASK]"), "the cat", max_new_tokens=5)
    assert "[" not in text
    assert len(text.split()) >= 2


GREEDY = "above 0; to take the most probable token each time, use --greedy (is_greedy=True)."


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"top_p": 2}, "top_p is 2; it must be above 0 and at most 1."),
        ({"temperature": 0}, f"temperature is 0; it must be {GREEDY}"),
        ({"temperature": float("nan")}, f"temperature is nan; it must be {GREEDY}"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0; it must be at least 1."),
        (
            {"max_new_tokens": 0, "top_p": 0},
            "max_new_tokens is 0; it must be at least 1. top_p is 0; it must be above 0 and at "
            "most 1.",
        ),
    ],
)
def test_wrong_settings_are_named_and_right_ones_are_not(tmp_path, wrong, message):
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        continue_text(*writer(tmp_path, "cat"), "the small", **wrong)
