"""RoFormer's tokenizer written again from its description, on Python's jieba: slow and plain.

Whole text to lower case, NFD, without combining marks; jieba without HMM; a word of the vocabulary
is one token; else white space, punctuation and Chinese characters part it, control characters go,
and the longest pieces are taken from the left. Nothing here comes from the library.
"""

import logging
import unicodedata

CHINESE = (
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0x2F800, 0x2FA1F),
)


def normalize(text):
    decomposed = unicodedata.normalize("NFD", text.lower())
    return "".join(c for c in decomposed if unicodedata.category(c) != "Mn")


def python_jieba():
    import jieba

    jieba.setLogLevel(logging.ERROR)
    return lambda text: jieba.lcut(text, HMM=False)


def encode(text, vocabulary, cut):
    ids = []
    for word in cut(normalize(text)):
        if word in vocabulary:
            ids.append(vocabulary[word])
        else:
            for part in split(word):
                ids += pieces(part, vocabulary)
    return ids


def split(word):
    spaced = ""
    for c in word:
        code, category = ord(c), unicodedata.category(c)
        is_sign = c.isascii() and 33 <= code <= 126 and not c.isalnum()
        if is_sign or category.startswith("P") or any(a <= code <= b for a, b in CHINESE):
            spaced += f" {c} "
        elif c in " \n\r\t" or category == "Zs":
            spaced += " "
        elif code not in (0, 0xFFFD) and category not in ("Cc", "Cf"):
            spaced += c
    return spaced.split()


def pieces(word, vocabulary):
    if len(word) > 200:
        return [vocabulary["[UNK]"]]
    found, start = [], 0
    while start < len(word):
        for stop in range(len(word), start, -1):
            piece = word[start:stop] if start == 0 else "##" + word[start:stop]
            if piece in vocabulary:
                break
        else:
            return [vocabulary["[UNK]"]]
        found.append(vocabulary[piece])
        start = stop
    return found
