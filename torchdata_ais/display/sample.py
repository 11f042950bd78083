"""What a notebook shows of a sample: where it stands, its fields, and a small picture of those that are one."""

from __future__ import annotations

import base64
import html
import io
from typing import Any

from torchdata_ais.display.pixels import is_image, to_picture
from torchdata_ais.display.rows import shown_as
from torchdata_ais.errors import AISError
from torchdata_ais.samples import Sample
from torchdata_ais.shown import value_text

__all__ = ["sample_html"]

_SIZE = 128
_PICTURES = 4


def sample_html(sample: Sample) -> str:
    """Return a table: key, shard and byte, then each field with its kind and size, images as thumbnails.

    Example:
        >>> sample_html(Sample({"__key__": "a", "cls": 3}))
        "<table><caption>sample 'a'</caption><tr><td>cls</td><td>3</td><td></td></tr></table>"
    """
    rows, pictures = "", 0
    for name, value in sample.items():
        if name.startswith("__"):
            continue
        picture = _thumbnail(name, value) if pictures < _PICTURES else ""
        pictures += bool(picture)
        text = html.escape(value_text(value), quote=False)
        rows += f"<tr><td>{html.escape(name)}</td><td>{text}</td><td>{picture}</td></tr>"
    return f"<table><caption>{html.escape(sample.where, quote=False)}</caption>{rows}</table>"


def _thumbnail(name: str, value: Any) -> str:
    """Return a picture of `value` as HTML; "" if it is none, or a damaged one."""
    try:
        image = shown_as(name, value)
        if not is_image(image):
            return ""
        picture = to_picture(image, None, None).convert("RGB")
        picture.thumbnail((_SIZE, _SIZE))
    except (AISError, OSError, ValueError, SyntaxError):
        return ""
    out = io.BytesIO()
    picture.save(out, "JPEG", quality=80)
    return f'<img src="data:image/jpeg;base64,{base64.b64encode(out.getvalue()).decode()}">'


Sample.picture = staticmethod(sample_html)
