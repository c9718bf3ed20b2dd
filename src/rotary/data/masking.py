"""BERT's masking rule, as a pure function of (seed, epoch, row)."""

from __future__ import annotations

import numpy as np
from transformers import PreTrainedTokenizerBase

from rotary._shapes import Integer
from rotary.data.draws import bits, uniform
from rotary.data.packing import IGNORED
from rotary.errors import ConfigError, DataError


class Masking:
    """Choose 15 % of the tokens; of these 80 % become [MASK], 10 % another token, 10 % stay.

    As in BERT (Devlin et al. 2019, section 3.1). The choice is made for each row: ``fraction`` of
    its ordinary tokens, rounded up or down at random so that the share is right on average, and at
    least one. Special tokens, unknown words included, are never chosen and never put in (the
    script that trained the Chinese RoFormers chose [CLS] and [SEP] too: nothing is learnt there).

    Args:
        tokenizer: For its mask token, special tokens and vocabulary.
        fraction: Share of the ordinary tokens that are predicted.
        mask_share: Share of these that become the mask token.
        random_share: Share of these that become an ordinary token drawn from the vocabulary; the
            remaining ones stay what they are.

    Raises:
        ConfigError: If the shares are not between 0 and 1, or are more than 1 together.
        DataError: If the tokenizer has no mask token.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        fraction: float = 0.15,
        mask_share: float = 0.8,
        random_share: float = 0.1,
    ) -> None:
        if not (0 < fraction <= 1 and min(mask_share, random_share) >= 0):
            raise ConfigError(
                f"Masking: fraction is {fraction}, mask_share {mask_share}, random_share "
                f"{random_share}; accepted are numbers between 0 and 1, and a fraction above 0."
            )
        if mask_share + random_share > 1 + 1e-12:
            raise ConfigError(
                f"Masking: mask_share {mask_share} and random_share {random_share} are more than 1 "
                "together; what is left of 1 is the share of tokens that stay."
            )
        if tokenizer.mask_token_id is None:
            raise DataError("Masking: this tokenizer has no mask token (for instance [MASK]).")
        self.fraction = fraction
        self.mask_share = mask_share
        self.random_share = random_share
        self.mask_id: int = tokenizer.mask_token_id
        ids = set(tokenizer.get_vocab().values())
        ordinary = sorted(ids - set(tokenizer.all_special_ids))
        self.ordinary_ids = np.array(ordinary, dtype=np.int64)
        self._is_ordinary = np.zeros(max(ids) + 1, dtype=bool)
        self._is_ordinary[self.ordinary_ids] = True

    def apply(
        self,
        input_ids: Integer[np.ndarray, "batch length"],
        *,
        rows: Integer[np.ndarray, " batch"],
        epochs: Integer[np.ndarray, " batch"],
        seed: int,
    ) -> tuple[Integer[np.ndarray, "batch length"], Integer[np.ndarray, "batch length"]]:
        """Mask rows, each by (seed, its epoch, its number) and nothing else.

        Args:
            input_ids: Tokens, not changed.
            rows: The number of each row.
            epochs: The epoch of each row.
            seed: Any integer.

        Returns:
            Tokens with masks, and labels: the old token where one was chosen, else -100.
        """
        batch, length = input_ids.shape
        raw = np.empty((batch, 3 * length + 1), dtype=np.uint64)
        for index, (row, epoch) in enumerate(zip(rows, epochs, strict=True)):
            raw[index] = bits(
                3 * length + 1, seed=seed, purpose="masks", epoch=int(epoch), row=int(row)
            )
        draw = uniform(raw)
        rank, action, other = (draw[:, n * length + 1 : (n + 1) * length + 1] for n in range(3))

        is_ordinary = self._is_ordinary[input_ids]
        num_ordinary = is_ordinary.sum(axis=1)
        wanted = np.floor(self.fraction * num_ordinary + draw[:, 0]).astype(np.int64)
        wanted = np.clip(wanted, np.minimum(1, num_ordinary), num_ordinary)
        order = np.argsort(np.where(is_ordinary, rank, 2.0), axis=1, kind="stable")
        is_chosen = np.zeros_like(is_ordinary)
        np.put_along_axis(is_chosen, order, np.arange(length) < wanted[:, None], axis=1)

        labels = np.where(is_chosen, input_ids, IGNORED)
        is_mask = is_chosen & (action < self.mask_share)
        is_random = is_chosen & ~is_mask & (action < self.mask_share + self.random_share)
        drawn = self.ordinary_ids[(other * len(self.ordinary_ids)).astype(np.int64)]
        masked = np.where(is_mask, self.mask_id, np.where(is_random, drawn, input_ids))
        return masked, labels
