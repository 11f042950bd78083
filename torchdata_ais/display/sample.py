"""What a notebook shows of a sample: where it stands, its fields, and a small picture of those that are one."""

from __future__ import annotations

import base64
import io
from typing import Any

from torchdata_ais.display.pixels import is_image, tinted, to_mask, to_picture
from torchdata_ais.display.rows import MASK_VALUES, is_mask_name, shown_as
from torchdata_ais.errors import AISError
from torchdata_ais.samples import Sample
from torchdata_ais.shown import value_text
from torchdata_ais.tables import html_text

_SIZE = 128
_PICTURES = 4
_FIELDS = 50
_NAME = 60
_CELL = 'style="text-align:left;overflow-wrap:anywhere"'


def sample_html(sample: Sample) -> str:
    """Return a table: key, shard and byte, then each field with its kind and size, images as thumbnails.

    Of very many fields the first are shown.

    Example:
        >>> sample_html(Sample({"__key__": "a", "cls": 3})).count("<tr>")
        1
    """
    names = [name for name in sample if not name.startswith("__")]
    rows, pictures = "", 0
    for name in names[:_FIELDS]:
        value = sample[name]
        picture = _thumbnail(name, value) if pictures < _PICTURES else ""
        pictures += bool(picture)
        cells = (_short(name), html_text(value_text(value)), picture)
        rows += f"<tr>{''.join(f'<td {_CELL}>{cell}</td>' for cell in cells)}</tr>"
    if len(names) > _FIELDS:
        rows += f'<tr><td {_CELL} colspan="3">and {len(names) - _FIELDS} more fields</td></tr>'
    return f"<table><caption {_CELL}>{html_text(sample.where)}</caption>{rows}</table>"


def _short(name: str) -> str:
    return html_text(name if len(name) <= _NAME else f"{name[: _NAME - 1]}\N{HORIZONTAL ELLIPSIS}")


def _thumbnail(name: str, value: Any) -> str:
    """Return a picture of `value` as HTML; "" if it is none, or a damaged one. The values of a mask get colours."""
    try:
        image = shown_as(name, value)
        if not is_image(image):
            return ""
        picture = to_picture(image, None, None).convert("RGB")
        picture.thumbnail((_SIZE, _SIZE))
        if is_mask_name(name) and (mask := to_mask(image)).max(initial=0) < MASK_VALUES:
            picture = tinted(picture, mask, 1.0)
    except (AISError, OSError, ValueError, SyntaxError):
        return ""
    out = io.BytesIO()
    picture.save(out, "JPEG", quality=80)
    return f'<img src="data:image/jpeg;base64,{base64.b64encode(out.getvalue()).decode()}">'
