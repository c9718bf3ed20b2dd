"""``rotary fill-mask``: what a trained model puts in the place of [MASK]."""

from __future__ import annotations

import argparse

from rotary.cli.arguments import check_utf8, whole_number


def main(arguments: list[str]) -> int:
    """Run the command; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="rotary fill-mask",
        description="Guess the words at [MASK] with a model that `rotary pretrain` made.",
    )
    parser.add_argument("folder", metavar="DIR", help="Folder of the run.")
    parser.add_argument("text", metavar="TEXT", help='Text with one "[MASK]" or more.')
    parser.add_argument("--top", type=whole_number(1), default=5, metavar="N", help="Guesses [5].")
    check_utf8(arguments)
    parsed = parser.parse_args(arguments)

    from rich.console import Console
    from rich.text import Text

    from rotary.training.guesses import fill_mask, load_model
    from rotary.training.quiet import quieten

    quieten()
    model, tokenizer = load_model(parsed.folder)
    masks = fill_mask(model, tokenizer, parsed.text, top=parsed.top)
    console = Console()
    pieces = parsed.text.split(tokenizer.mask_token)
    for index, guesses in enumerate(masks):
        if len(masks) > 1:
            console.print(f"{tokenizer.mask_token} {index + 1}", markup=False, style="bold")
        before = tokenizer.mask_token.join(pieces[: index + 1])
        after = tokenizer.mask_token.join(pieces[index + 1 :])
        for guess in guesses:
            line = Text(f"{guess.probability:7.1%}  ")
            line.append(f"{guess.token:<16}", style="bold")
            # A piece that goes on a word joins it.
            is_rest = guess.token.startswith("##")
            line.append(before.rstrip() if is_rest else before)
            line.append(guess.token.removeprefix("##"), style="bold")
            line.append(after)
            console.print(line, soft_wrap=True)
    return 0
