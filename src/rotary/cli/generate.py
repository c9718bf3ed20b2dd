"""``rotary generate``: go on writing where a text stops."""

from __future__ import annotations

import argparse

from rotary.cli.arguments import check_utf8, number, whole_number

# Logits divided by less are infinite in float32; --greedy is what that would mean.
TEMPERATURES = (1e-6, 1e6)
SEEDS = (0, 2**64 - 1)  # What PyTorch's generators take.


def main(arguments: list[str]) -> int:
    """Run the command; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="rotary generate",
        description="Continue a text with a causal RoFormer (config.is_decoder).",
    )
    parser.add_argument("folder", metavar="DIR", help="Folder with model and tokenizer.")
    parser.add_argument("prompt", metavar="PROMPT", help="The text to go on from.")
    parser.add_argument(
        "--max-new-tokens", type=whole_number(1), default=128, metavar="N", help="[128]"
    )
    parser.add_argument("--greedy", action="store_true", help="Take the most probable token.")
    parser.add_argument("--top-p", type=float, default=0.95, metavar="P", help="[0.95]")
    parser.add_argument(
        "--temperature", type=number(*TEMPERATURES), default=1.0, metavar="T", help="[1.0]"
    )
    parser.add_argument(
        "--seed", type=whole_number(*SEEDS), default=0, metavar="N", help="Of the draws [0]."
    )
    check_utf8(arguments)
    parsed = parser.parse_args(arguments)

    from rotary.models.writing import continue_text, load_writer

    model, tokenizer = load_writer(parsed.folder)
    text = continue_text(
        model,
        tokenizer,
        parsed.prompt,
        max_new_tokens=parsed.max_new_tokens,
        is_greedy=parsed.greedy,
        top_p=parsed.top_p,
        temperature=parsed.temperature,
        seed=parsed.seed,
    )
    print(text)
    return 0
