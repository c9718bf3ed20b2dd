"""The word tokenizer of RoFormer and WoBERT (Su 7758), as a Hugging Face tokenizer.

The whole text is normalised, jieba's dictionary cuts it into words, a word of the vocabulary is one
token, and any other is split as BERT does. It is plain Python around rjieba, so it can be pickled,
copied and sent to workers, and it knows the place of every token in the original text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from transformers import AddedToken, BatchEncoding, PreTrainedTokenizer
from transformers.tokenization_utils_base import TruncationStrategy
from transformers.utils import PaddingStrategy

from rotary.errors import ConfigError, one_of
from rotary.models.roformer.batching import collect, cut_to_length, pad_all, read_samples, reader
from rotary.models.roformer.decoding import join_tokens
from rotary.models.roformer.encodings import Encoding, Frame, Window
from rotary.models.roformer.normalization import Normalizer
from rotary.models.roformer.segmentation import basic_cut, dictionary_cut
from rotary.models.roformer.text_encoder import KnownToken, TextEncoder
from rotary.models.roformer.vocabulary import (
    check_fits,
    check_vocabulary,
    grow_embeddings,
    has_words,
    load_vocabulary,
    require_special,
)

LEVELS = ("word", "character")

_Vocabulary = str | PathLike[str] | Mapping[str, int] | Sequence[str]


class _Memory:
    """What is made from a tokenizer's state; it is empty in a copy or a pickle.

    So workers get no dictionary of rjieba (which cannot be pickled), and use does not change the
    fingerprint that ``datasets`` takes of a tokenizer.
    """

    def __init__(self) -> None:
        self.encoder: TextEncoder | None = None
        self.frames: dict[bool, Frame] = {}

    def __reduce__(self) -> tuple[type[_Memory], tuple[()]]:
        return _Memory, ()


class RoFormerTokenizer(PreTrainedTokenizer):
    r"""Words where the vocabulary has them, characters and pieces elsewhere.

    Everything that a Hugging Face tokenizer does works: pairs, truncation, windows with overlap,
    padding, offsets, ``word_ids``, tensors, added tokens, saving, ``AutoTokenizer`` (after
    ``rotary.models.register()``), pipelines, collators. Its file is ``vocab.txt``.

    Args:
        vocab: The vocabulary: a file with one token a line, the tokens in order, or tokens to ids.
        vocab_file: The same, by the name under which ``from_pretrained`` hands it over.
        tokenizer_file: A ``tokenizer.json`` of transformers, read for its vocabulary where there is
            no ``vocab.txt``.
        level: ``"word"`` cuts text with jieba first, ``"character"`` is BERT's tokenizer, as the
            character-level RoFormers use it. By default the vocabulary tells: it holds Chinese
            words or it does not.
        do_lower_case: Lower-case the text.
        strip_accents: Decompose the text and drop combining marks; by default as ``do_lower_case``.
        added_words: Words that jieba's dictionary has been given; see :meth:`add_words`.
        unk_token, sep_token, pad_token, cls_token, mask_token: The special tokens, in ``vocab``.
        **kwargs: What every Hugging Face tokenizer takes.

    Raises:
        DataError: If there is no vocabulary, or it is not one.
        ConfigError: If a special token is not in it, or ``level`` is unknown.
        MissingDependencyError: If words are to be cut and rjieba is not installed.

    Example:
        >>> vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "今天", "好", "非常"]
        >>> tokenizer = RoFormerTokenizer(vocabulary)
        >>> tokenizer.tokenize("今天非常好"), tokenizer("今天")["input_ids"]
        (['今天', '非常', '好'], [2, 5, 3])
    """

    vocab_files_names = {"vocab_file": "vocab.txt"}  # noqa: RUF012 (read from the class)
    model_input_names = ["input_ids", "token_type_ids", "attention_mask"]  # noqa: RUF012 (same)
    # Here the token-classification pipeline looks for the sign of a piece inside a word; without it
    # a text without spaces is one word to it.
    _tokenizer = SimpleNamespace(model=SimpleNamespace(continuing_subword_prefix="##"))

    def __init__(
        self,
        vocab: _Vocabulary | None = None,
        *,
        vocab_file: str | PathLike[str] | None = None,
        tokenizer_file: str | PathLike[str] | None = None,
        level: str | None = None,
        do_lower_case: bool = True,
        strip_accents: bool | None = None,
        added_words: Sequence[str] = (),
        unk_token: str | AddedToken | None = "[UNK]",
        sep_token: str | AddedToken | None = "[SEP]",
        pad_token: str | AddedToken | None = "[PAD]",
        cls_token: str | AddedToken | None = "[CLS]",
        mask_token: str | AddedToken | None = "[MASK]",
        **kwargs: Any,
    ) -> None:
        if kwargs.pop("tokenize_chinese_chars", True) is False:
            raise ConfigError("tokenize_chinese_chars is False; RoFormer splits them, always")
        self.vocab = load_vocabulary(vocab if vocab is not None else vocab_file or tokenizer_file)
        self._tokens = list(self.vocab)
        if level is not None and level not in LEVELS:
            raise ConfigError(one_of("level", level, LEVELS))
        self.level = level or ("word" if has_words(self.vocab) else "character")
        self.do_lower_case = do_lower_case
        self.strip_accents = strip_accents
        self.added_words = list(added_words)
        special = {
            "unk_token": unk_token,
            "sep_token": sep_token,
            "pad_token": pad_token,
            "cls_token": cls_token,
            "mask_token": mask_token,
        }
        added = kwargs.get("added_tokens_decoder") or {}
        require_special(special, self.vocab, [str(token) for token in added.values()])
        pattern = kwargs.pop("token_type_ids_pattern", "bert_style")
        kwargs.pop("special_tokens_pattern", None)
        super().__init__(
            level=level,
            do_lower_case=do_lower_case,
            strip_accents=strip_accents,
            added_words=self.added_words,
            special_tokens_pattern="cls_sep",
            token_type_ids_pattern=pattern,
            **special,
            **kwargs,
        )
        if pattern != "bert_style":
            self.init_kwargs["token_type_ids_pattern"] = pattern
        self._text_encoder()  # So that what is missing is said now.

    # ---- what the base class asks of a tokenizer -------------------------------------------------

    @property
    def is_fast(self) -> bool:
        """Whether offsets and words are known, which is what transformers means by it: yes."""
        return True

    @property
    def vocab_size(self) -> int:
        """Number of tokens in the vocabulary, without those that were added by ``add_tokens``."""
        return len(self._tokens)

    def __len__(self) -> int:
        return len(self._tokens) + sum(t not in self.vocab for t in self._added_tokens_encoder)

    def get_vocab(self) -> dict[str, int]:
        """From every token to its id, with the added ones."""
        return {**self.vocab, **self._added_tokens_encoder}

    def _convert_token_to_id(self, token: str) -> int | None:
        found = self.vocab.get(token)
        return self.get_vocab().get(str(self.unk_token)) if found is None else found

    def _convert_id_to_token(self, index: int) -> str:
        if index < 0:
            raise ConfigError(f"the id {index} is negative; labels of -100 must be left out first")
        # A model's table may be rounded up: rows beyond the vocabulary mean nothing.
        return self._tokens[index] if index < len(self._tokens) else str(self.unk_token)

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        """Join tokens to a text: pieces and Chinese without spaces, Latin words with one."""
        return join_tokens(tokens, set(self.all_special_tokens))

    def save_vocabulary(
        self, save_directory: str, filename_prefix: str | None = None
    ) -> tuple[str, ...]:
        """Write ``vocab.txt`` into a folder; return its path."""
        name = f"{filename_prefix}-vocab.txt" if filename_prefix else "vocab.txt"
        path = Path(save_directory) / name
        path.write_bytes("".join(f"{token}\n" for token in self._tokens).encode("utf-8"))
        return (str(path),)

    def tokenize(
        self, text: str, pair: str | None = None, add_special_tokens: bool = False, **kwargs: Any
    ) -> list[str]:
        """The tokens of a text as strings."""
        ids = self.encode(text, pair, add_special_tokens=add_special_tokens, **kwargs)
        return self.convert_ids_to_tokens(ids)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        self._forget()

    def _add_tokens(self, new_tokens: list[Any], special_tokens: bool = False) -> int:
        self._forget()
        return super()._add_tokens(new_tokens, special_tokens=special_tokens)

    def _forget(self) -> None:
        """Drop what was made from the present state, because it changes."""
        self.__dict__["_memory"] = _Memory()

    # ---- text to ids -----------------------------------------------------------------------------

    def _text_encoder(self) -> TextEncoder:
        """The pure function of this tokenizer's present state; made when the state has changed."""
        memory: _Memory = self.__dict__["_memory"]
        if memory.encoder is None:
            strips = self.do_lower_case if self.strip_accents is None else self.strip_accents
            is_word = self.level == "word"
            memory.encoder = TextEncoder(
                self.vocab,
                unknown=self.convert_tokens_to_ids(str(self.unk_token)),
                normalizer=Normalizer(self.do_lower_case, strips),
                cut=dictionary_cut(tuple(self.added_words)) if is_word else basic_cut(),
                tokens=[KnownToken.of(token, i) for i, token in self._added_tokens_decoder.items()],
            )
        return memory.encoder

    def _frame(self, add_special_tokens: bool) -> Frame:
        """What goes around the texts; made when the state has changed."""
        frames: dict[bool, Frame] = self.__dict__["_memory"].frames
        if add_special_tokens not in frames:
            begin, separate = self.cls_token_id, self.sep_token_id
            if add_special_tokens and (begin is None or separate is None):
                raise ConfigError(
                    f"cls_token is {self.cls_token!r} and sep_token is {self.sep_token!r}: set "
                    "both, or call with add_special_tokens=False"
                )
            frames[add_special_tokens] = Frame(
                begin=begin if add_special_tokens else None,
                separate=separate if add_special_tokens else None,
                pad=0 if self.pad_token is None else self.pad_token_id,
                pad_type=self.pad_token_type_id,
                has_second_type=self.token_type_ids_pattern == "bert_style",
                token_of=self.convert_ids_to_tokens,
            )
        return frames[add_special_tokens]

    def _encode_plus(
        self,
        text: Any,
        text_pair: Any = None,
        add_special_tokens: bool = True,
        padding_strategy: PaddingStrategy = PaddingStrategy.DO_NOT_PAD,
        truncation_strategy: TruncationStrategy = TruncationStrategy.DO_NOT_TRUNCATE,
        max_length: int | None = None,
        stride: int = 0,
        is_split_into_words: bool = False,
        pad_to_multiple_of: int | None = None,
        padding_side: str | None = None,
        return_tensors: Any = None,
        return_overflowing_tokens: bool = False,
        return_offsets_mapping: bool = False,
        split_special_tokens: bool | None = None,
        verbose: bool = True,
        **returns: Any,
    ) -> BatchEncoding:
        samples, is_batch = read_samples(text, text_pair, is_split_into_words)
        read = reader(
            self._text_encoder(),
            is_split_into_words=is_split_into_words,
            split_special=bool(
                self.split_special_tokens if split_special_tokens is None else split_special_tokens
            ),
            with_details=return_offsets_mapping,
        )
        frame = self._frame(add_special_tokens)
        limit = None if truncation_strategy == TruncationStrategy.DO_NOT_TRUNCATE else max_length
        encodings: list[Encoding] = []
        origins: list[int] = []
        for number, (first, second) in enumerate(samples):
            sources = [read(first)] if second is None else [read(first), read(second)]
            if limit is None:
                encodings.append(Encoding([Window(s, 0, len(s.ids)) for s in sources], frame))
                origins.append(number)
                continue
            for cut in cut_to_length(
                [len(source.ids) for source in sources],
                limit,
                frame,
                strategy=truncation_strategy.value,
                side=self.truncation_side,
                stride=stride if return_overflowing_tokens else None,
            ):
                parts = [Window(s, *stretch) for s, stretch in zip(sources, cut, strict=True)]
                encodings.append(Encoding(parts, frame))
                origins.append(number)
        if max_length is None:
            self._warn_of_length(encodings, verbose)
        side = self.padding_side if padding_side is None else padding_side
        if side not in ("left", "right"):
            raise ConfigError(one_of("padding_side", side, ("left", "right")))
        pad_all(
            encodings,
            strategy=padding_strategy,
            max_length=max_length,
            multiple=pad_to_multiple_of,
            side=side,
        )
        columns = collect(
            encodings,
            self.model_input_names,
            return_offsets_mapping=return_offsets_mapping,
            **returns,
        )
        if return_overflowing_tokens:
            columns["overflow_to_sample_mapping"] = origins
        data: dict[str, Any] = columns
        if not is_batch and not return_overflowing_tokens and return_tensors is None:
            # As transformers' fast tokenizers do, which leave "length" a list.
            data = {k: v[0] if isinstance(v[0], list) else v for k, v in columns.items()}
        count = encodings[0].n_sequences if encodings else None
        return BatchEncoding(data, encodings, tensor_type=return_tensors, n_sequences=count)

    def _warn_of_length(self, encodings: Sequence[Encoding], verbose: bool) -> None:
        longest = max(encodings, key=len, default=None)
        if longest is not None and len(longest) > self.model_max_length:
            self._eventual_warn_about_too_long_sequence(longest.ids, None, verbose)

    # ---- words and models ------------------------------------------------------------------------

    def add_words(self, words: Iterable[str], model: Any = None) -> list[int]:
        """Teach new words: to the vocabulary, to jieba's dictionary and, if given, to a model.

        Args:
            words: Words as they stand in texts; they are normalised. Known ones are passed over.
            model: A model whose embeddings get a row for each, the mean of the rows of the tokens
                that stood for the word so far.

        Returns:
            The ids of the words that are new, in order.

        Raises:
            ConfigError: If a word can never be cut as one, this tokenizer is character-level, or
                the model does not fit it. Nothing is changed then.

        Example:
            >>> special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
            >>> tokenizer = RoFormerTokenizer([*special, "今天", "区", "块", "链"])
            >>> tokenizer.add_words(["区块链"]), tokenizer.tokenize("今天区块链")
            ([9], ['今天', '区块链'])
        """
        if self.level != "word":
            raise ConfigError(
                "this tokenizer is character-level and cuts no words; use add_tokens, or make it "
                "with level='word'"
            )
        encoder = self._text_encoder()
        normal = list(dict.fromkeys([encoder.normalizer(word) for word in words]))
        if any(not word.strip() or word != "".join(word.split()) for word in normal):
            raise ConfigError("a word to add is empty or holds white space")
        to_cut = [word for word in normal if encoder.cut(word) != [word]]
        dictionary_cut((*self.added_words, *to_cut))  # Refuses what cannot be cut.
        known = self.get_vocab()
        new = [word for word in normal if word not in known]
        if model is not None:
            check_fits(self, model)
            grow_embeddings(model, [encoder.ids(word) for word in new], first=len(known))
        # Tokens of add_tokens keep their ids: vocab.txt then names them as well.
        tokens = sorted(known, key=known.__getitem__) + new
        self.vocab = check_vocabulary(tokens, where="the vocabulary with the new words")
        self._tokens = tokens
        self.added_words = [*self.added_words, *to_cut]
        self.init_kwargs["added_words"] = self.added_words
        return [self.vocab[word] for word in new]
