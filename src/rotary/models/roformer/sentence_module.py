"""RoFormer's sentence vectors as a module of sentence-transformers.

``SentenceTransformer(modules=[RoFormerSentenceModule.load(folder)])`` encodes, trains and saves;
the folder it saves loads with ``SentenceTransformer(folder, trust_remote_code=True)``, which is
how that library asks before it imports a module of another, here this one as it is installed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sentence_transformers.base.modules import InputModule
from torch import Tensor
from transformers import AutoTokenizer

from rotary.models.register import register
from rotary.models.roformer.sequence_heads import RoFormerForSentenceEmbedding


class RoFormerSentenceModule(InputModule):
    """Text to vectors of length 1; pooling and pooler are in the model's config.

    Args:
        model: The sentence model.
        tokenizer: Its tokenizer.
        max_seq_length: Cut longer texts to this many tokens; None cuts none, the model has no
            limit.
    """

    config_keys = ["max_seq_length"]  # noqa: RUF012 (declared as a list by the base)
    config_file_name = "rotary_sentence_config.json"

    def __init__(
        self,
        model: RoFormerForSentenceEmbedding,
        tokenizer: Any,
        max_seq_length: int | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.tokenizer = tokenizer
        self.max_seq_length = max_seq_length

    def preprocess(
        self, inputs: Sequence[Any], prompt: str | None = None, **kwargs: Any
    ) -> dict[str, Tensor]:
        """Texts, or pairs of texts, to a padded batch of tokens."""
        texts = [text if isinstance(text, str) else tuple(text) for text in inputs]
        if prompt:
            texts = self._prepend_prompt(texts, prompt)
        features: dict[str, Tensor] = self.tokenizer(
            texts,
            padding=True,
            truncation="longest_first" if self.max_seq_length else False,
            max_length=self.max_seq_length,
            return_tensors="pt",
        )
        return dict(features)

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Add ``sentence_embedding`` (batch, hidden size) to the batch."""
        names = ("input_ids", "attention_mask", "token_type_ids")
        inputs = {name: features[name] for name in names if name in features}
        features["sentence_embedding"] = self.model(**inputs).sentence_embedding
        return features

    def get_embedding_dimension(self) -> int:
        """Width of the vectors."""
        return self.model.config.hidden_size

    def save(
        self, output_path: str, *args: Any, safe_serialization: bool = True, **kwargs: Any
    ) -> None:
        """Write model, tokenizer and length into a folder; always safetensors."""
        self.model.save_pretrained(output_path)
        self.save_tokenizer(output_path)
        self.save_config(output_path)

    @classmethod
    def load(
        cls, model_name_or_path: str, subfolder: str = "", **kwargs: Any
    ) -> RoFormerSentenceModule:
        """Read a folder, or a model of the hub, that holds a RoFormer and its tokenizer."""
        register()
        keep = ("token", "revision", "local_files_only")
        where = {name: kwargs[name] for name in keep if kwargs.get(name) is not None}
        if kwargs.get("cache_folder") is not None:
            where["cache_dir"] = kwargs["cache_folder"]
        is_local = Path(model_name_or_path).is_dir()
        source = str(Path(model_name_or_path) / subfolder) if is_local else model_name_or_path
        if subfolder and not is_local:
            where["subfolder"] = subfolder
        model = RoFormerForSentenceEmbedding.from_pretrained(source, **where)
        tokenizer = AutoTokenizer.from_pretrained(source, **where)
        saved = cls.load_config(
            model_name_or_path,
            subfolder=subfolder,
            **{name: kwargs[name] for name in (*keep, "cache_folder") if name in kwargs},
        )
        return cls(model, tokenizer, (saved or {}).get("max_seq_length"))
