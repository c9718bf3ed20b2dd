"""PEFT: LoRA on queries and values trains, merges, is saved and loaded."""

import pytest
import torch
from tools_support import ragged, tiny

from rotary.models import RoFormerForMaskedLM, RoFormerForSequenceClassification

peft = pytest.importorskip("peft")

# PEFT 0.21 asks transformers 5.24 by a name that transformers will take away.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated")
LORA = {"r": 4, "lora_alpha": 8, "target_modules": ["query", "value"], "lora_dropout": 0.0}


def train(model, given, steps=15):
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1e-2)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model.train()(**given).loss
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    model.eval()
    return losses


def adapted(cls, tmp_path, **config):
    """A model saved to a folder, and the same one with an adapter."""
    base = tiny(cls, **config)
    base.save_pretrained(tmp_path / "base")
    task = "SEQ_CLS" if cls is RoFormerForSequenceClassification else None
    return peft.get_peft_model(base, peft.LoraConfig(task_type=task, **LORA))


def test_only_the_adapter_learns_and_it_merges(tmp_path):
    model = adapted(RoFormerForMaskedLM, tmp_path)
    ids, mask = ragged(3, 7)
    given = {"input_ids": ids, "attention_mask": mask}
    learns = [name for name, p in model.named_parameters() if p.requires_grad]
    assert len(learns) == 2 * 2 * 2  # Layers, projections, factors.
    assert all("lora_" in name for name in learns)
    with torch.no_grad():
        before = model(**given).logits
    labels = ids.masked_fill(~mask.bool(), -100)
    losses = train(model, {**given, "labels": labels})
    assert losses[-1] < 0.9 * losses[0]

    model.save_pretrained(tmp_path / "adapter")
    base = RoFormerForMaskedLM.from_pretrained(tmp_path / "base").eval()
    loaded = peft.PeftModel.from_pretrained(base, tmp_path / "adapter")
    with torch.no_grad():
        expected = model(**given).logits
        torch.testing.assert_close(loaded(**given).logits, expected)
        with model.disable_adapter():
            torch.testing.assert_close(model(**given).logits, before)
        merged = model.merge_and_unload()
        assert type(merged) is RoFormerForMaskedLM
        real = mask.bool()
        found = merged(**given).logits
    assert (expected - before)[real].abs().max() > 0.1
    torch.testing.assert_close(found[real], expected[real], rtol=1e-4, atol=1e-4)
    # What was merged is a plain model: its folder needs no PEFT.
    merged.save_pretrained(tmp_path / "merged")
    plain = RoFormerForMaskedLM.from_pretrained(tmp_path / "merged").eval()
    with torch.no_grad():
        assert torch.equal(plain(**given).logits, found)


def test_a_new_classifier_is_trained_and_saved_with_the_adapter(tmp_path):
    """``task_type="SEQ_CLS"`` finds our head by its name, which stock RoFormer has too."""
    model = adapted(RoFormerForSequenceClassification, tmp_path, num_labels=2)
    ids, mask = ragged(4, 7)
    given = {"input_ids": ids, "attention_mask": mask}
    losses = train(model, {**given, "labels": torch.tensor([0, 1, 0, 1])}, steps=30)
    assert losses[-1] < 0.5 * losses[0]
    model.save_pretrained(tmp_path / "adapter")
    base = RoFormerForSequenceClassification.from_pretrained(tmp_path / "base").eval()
    loaded = peft.PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    with torch.no_grad():
        torch.testing.assert_close(loaded(**given).logits, model(**given).logits)
