"""Positions: their numbers, their shapes, and what is said about wrong ones."""

import numpy as np
import pytest
import torch
from packaging import version

from rotary.errors import ConfigError, DtypeError, ShapeError
from rotary.positions import grid, left_padded, mrope, packed, sequence, shard


def test_sequence():
    assert sequence(0).tolist() == []
    assert sequence(3, -2).tolist() == [-2, -1, 0]
    assert sequence(2, torch.tensor([3, -1], dtype=torch.int32)).tolist() == [[3, 4], [-1, 0]]
    assert sequence(2, torch.tensor(5)).tolist() == [5, 6]
    assert sequence(2).dtype == sequence(2, torch.tensor([1])).dtype == torch.int64
    assert sequence(2, device="meta").is_meta


def test_grid_on_a_grid_that_is_not_square():
    # The flat order of tokens is that of x.flatten(), the last axis fastest.
    rows, columns = grid(2, 3).T
    assert rows.tolist() == [0, 0, 0, 1, 1, 1]
    assert columns.tolist() == [0, 1, 2, 0, 1, 2]
    assert torch.equal(grid(2, 3, order="wh"), grid(2, 3).flip(-1))
    assert torch.equal(grid(2, 3, axes="wh", order="hw"), grid(2, 3).flip(-1))
    assert grid(2, 3, 4).shape == (24, 3)
    assert grid(2, 3, 4)[-1].tolist() == [1, 2, 3]
    assert grid(2, 2, 2, 2, axes="abcd")[-1].tolist() == [1, 1, 1, 1]


def test_grid_coordinates():
    found = grid(2, 4, coordinates="normalised")
    assert found[:, 0].unique().tolist() == [-0.5, 0.5]
    assert found[:, 1].unique().tolist() == [-0.75, -0.25, 0.25, 0.75]
    # Trained on 4 x 4, used on 8 x 4: the long axis is squeezed, the other is not.
    found = grid(8, 4, scale=(4 / 8, 1.0))
    assert found.dtype == torch.float64
    assert found.amax(0).tolist() == [3.5, 3.0]
    assert grid(2, 2, scale=2, offset=(10, 0)).tolist() == [[10, 0], [10, 2], [12, 0], [12, 2]]
    assert grid(2, 2, scale=2).dtype == torch.int64
    for far in (1e19, -(2**53), 2**53):  # Whole, but int64 would wrap or float64 has lost it.
        assert grid(2, offset=far).tolist() == [[far], [far + 1.0]]
    prefixed = grid(1, 2, num_prefix_tokens=2, offset=1)
    assert prefixed.tolist() == [[0, 0], [0, 0], [1, 1], [1, 2]]


@pytest.mark.usefixtures("wrong_types")
def test_grid_takes_numbers_of_numpy():
    assert grid(2, scale=np.float32(0.5)).tolist() == [[0], [0.5]]
    assert grid(1, 2, scale=np.array([2, 3])).tolist() == [[0, 0], [0, 3]]


def test_packed_and_padded():
    assert packed([3, 0, 2]).tolist() == [0, 1, 2, 0, 1]
    assert packed(torch.tensor([3, 0, 2])).tolist() == [0, 1, 2, 0, 1]
    assert packed([]).tolist() == []
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1], [0, 0, 0, 0], [1, 1, 0, 0]])
    assert left_padded(mask).tolist() == [[0, 0, 0, 1], [0, 1, 2, 3], [0, 0, 0, 0], [0, 1, 1, 1]]
    assert torch.equal(left_padded(mask.bool()), left_padded(mask))


@pytest.mark.parametrize("scheme", ["contiguous", "zigzag"])
@pytest.mark.parametrize("world", [1, 2, 4])
def test_shards_are_the_whole_once(scheme, world):
    parts = [shard(16, rank, world, scheme) for rank in range(world)]
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(16))
    assert len({len(part) for part in parts}) == 1
    row = [shard([8, 16], rank, world, scheme, is_row=True) for rank in range(world)]
    assert torch.equal(torch.cat(row).sort().values, torch.arange(24))
    for rank in range(world):
        where = shard([8, 16], rank, world, scheme, is_row=True)
        assert torch.equal(shard([8, 16], rank, world, scheme), packed([8, 16])[where])


def test_zigzag_balances_a_causal_mask():
    work = [int((shard(16, rank, 4, "zigzag") + 1).sum()) for rank in range(4)]
    assert len(set(work)) == 1
    assert shard(16, 1, 4, "zigzag").tolist() == [2, 3, 12, 13]
    assert shard(16, 1, 4).tolist() == [4, 5, 6, 7]


def test_mrope_by_hand():
    found = mrope(2, (1, 2, 3), 2, (2, 1, 1), 1)
    assert found.tolist() == [
        [0, 0, 0],
        [1, 1, 1],
        *([2, 2 + h, 2 + w] for h in range(2) for w in range(3)),
        [5, 5, 5],
        [6, 6, 6],
        [7, 7, 7],
        [8, 7, 7],
        [9, 9, 9],
    ]
    assert mrope(1, (2, 1, 1), 1, time_scale=2.5)[:, 0].tolist() == [0, 1, 3.5, 4.5]
    assert mrope().shape == (0, 3)
    assert mrope(2, offset=4).tolist() == [[4, 4, 4], [5, 5, 5]]


def theirs_of(kinds, **grids):
    """What transformers' Qwen2-VL gives to tokens of these kinds: 0 text, 1 image, 2 video."""
    from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLConfig
    from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLModel

    class Stub:
        config = Qwen2VLConfig()
        get_vision_position_ids = getattr(Qwen2VLModel, "get_vision_position_ids", None)

    kinds = torch.tensor([kinds])
    grids = {name: torch.tensor([grid]) for name, grid in grids.items()}
    found, _ = Qwen2VLModel.get_rope_index(Stub(), torch.ones_like(kinds), kinds, **grids)
    return found[:, 0].T


def test_mrope_numbers_text_and_images_as_transformers_does():
    # Two tokens, an image of 1 x 4 x 6 patches merged 2 x 2, three tokens.
    theirs = theirs_of([0, 0] + [1] * 6 + [0] * 3, image_grid_thw=[1, 4, 6])
    assert torch.equal(theirs, mrope(2, (1, 2, 3), 3))


def test_mrope_goes_on_behind_the_last_frame_of_a_video_unlike_transformers():
    """Five frames of one cell: the cells are the same, the text behind them is not."""
    ours = mrope(1, (5, 1, 1), 2)
    assert ours.tolist() == [
        [0, 0, 0],
        *([1 + frame, 1, 1] for frame in range(5)),
        [6, 6, 6],
        [7, 7, 7],
    ]
    import transformers

    theirs = theirs_of([0] + [2] * 5 + [0] * 2, video_grid_thw=[5, 2, 2])
    assert torch.equal(theirs[:6], ours[:6])
    if version.parse(transformers.__version__) >= version.parse("5.24"):
        assert theirs[6:].tolist() == [[2, 2, 2], [3, 3, 3]]  # As the docstring says.
    found = mrope(2, (3, 1, 1), 1, time_scale=1.7)[:, 0]
    assert found.tolist() == pytest.approx([0, 1, 2, 3.7, 5.4, 6.4])


WRONG = {
    "negative": (lambda: sequence(-1), ConfigError, "length is -1"),
    "not whole": (lambda: sequence(2.5), ConfigError, "must be an integer"),
    "offsets": (lambda: sequence(2, torch.zeros(2, 2, dtype=int)), ShapeError, r"\(batch,\)"),
    "float offsets": (lambda: sequence(2, torch.zeros(2)), DtypeError, "integer dtype"),
    "no size": (lambda: grid(), ConfigError, "grid\\(height, width\\)"),
    "size 0": (lambda: grid(2, 0), ConfigError, "at least 1"),
    "axes": (lambda: grid(2, 2, axes="hh"), ConfigError, "one different name"),
    "order": (lambda: grid(2, 2, order="xy"), ConfigError, "must name each"),
    "coordinates": (lambda: grid(2, coordinates="pixels"), ConfigError, "mean 'pixel'"),
    "scale": (lambda: grid(2, 2, scale=(1, 2, 3)), ConfigError, "3 numbers for 2"),
    "scale: nan": (lambda: grid(2, scale=float("nan")), ConfigError, "scale is nan; give a finite"),
    "offset: inf": (lambda: grid(2, 2, offset=(0, 1e400)), ConfigError, "one for each of 2 sizes"),
    "scale: word": (lambda: grid(2, scale="a"), ConfigError, "scale is 'a'; give a finite"),
    "scale: None": (lambda: grid(2, scale=None), ConfigError, "scale is None; give a finite"),
    "prefix": (lambda: grid(2, num_prefix_tokens=-1), ConfigError, "0 or more"),
    "document": (lambda: packed([2, -1]), ConfigError, "0 or more"),
    "documents": (lambda: packed(torch.zeros(2, 2, dtype=int)), ShapeError, r"\(documents,\)"),
    "mask": (lambda: left_padded(torch.ones(2, 1, 3, 3, dtype=int)), ShapeError, "batch, length"),
    "additive": (lambda: left_padded(torch.zeros(2, 3)), DtypeError, "additive"),
    "rank": (lambda: shard(8, 2, 2), ConfigError, "rank is 2"),
    "scheme": (lambda: shard(8, 0, 2, "zigzak"), ConfigError, "mean 'zigzag'"),
    "uneven": (lambda: shard(6, 0, 2, "zigzag"), ConfigError, "Pad it to 8"),
    "segment": (lambda: mrope(1, (2, 3)), ConfigError, "frames, height, width"),
}


@pytest.mark.usefixtures("wrong_types")
@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said(case):
    make, kind, message = WRONG[case]
    with pytest.raises(kind, match=message):
        make()
