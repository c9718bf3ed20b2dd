"""Names for shapes in annotations: ``Float[Tensor, "*shape dim"]``.

Where jaxtyping is installed these are its own types, and the tests enforce them at run time
(``pytest --enforce-shapes``); a bare install of the library does without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int, Integer, Num, Shaped
else:
    try:
        from jaxtyping import Bool, Float, Int, Integer, Num, Shaped
    except ImportError:

        class _Plain:
            """``Float[Tensor, "..."]`` is ``Tensor`` where nobody checks shapes."""

            def __class_getitem__(cls, item: tuple[Any, str]) -> Any:
                return item[0]

        Bool = Float = Int = Integer = Num = Shaped = _Plain

__all__ = ["Bool", "Float", "Int", "Integer", "Num", "Shaped"]
