"""The README's figure: bars of the cases of `table.json` that were measured, as SVG. `table.py` writes it."""

import pathlib
from xml.sax.saxutils import escape

SVG = pathlib.Path(__file__).parents[1] / "docs" / "images" / "speed.svg"
CASES = [
    (
        "JPEGs to 224x224, 2 workers",
        "decode",
        [
            ("this package, with [fast]", "ours, DataLoader2, W=2"),
            ("webdataset given the same decoder", "webdataset + fast decoder, W=2"),
            ("webdataset", "webdataset, W=2"),
        ],
    ),
    (
        "Random crop to 224x224 out of 500x375, 2 workers",
        "crop",
        [
            ("this package, with [fast]", "ours, DataLoader2, W=2"),
            ("webdataset, fast decoder, torchvision", "webdataset + fast decoder, W=2"),
            ("webdataset, PIL, torchvision", "webdataset, W=2"),
        ],
    ),
    (
        "Random crop to 224x224 out of 12 megapixels, 2 workers",
        "crop-12mp",
        [
            ("this package, with [fast]", "ours, DataLoader2, W=2"),
            ("webdataset, fast decoder, torchvision", "webdataset + fast decoder, W=2"),
            ("webdataset, PIL, torchvision", "webdataset, W=2"),
        ],
    ),
    (
        "Bytes as stored, 2 workers",
        "undecoded",
        [("this package", "ours, DataLoader2, W=2"), ("webdataset", "webdataset, W=2")],
    ),
    (
        "Records of 4 KB, 2 workers",
        "small",
        [("this package", "ours, DataLoader2, W=2"), ("webdataset", "webdataset, W=2")],
    ),
]
WIDTH, LEFT, LONGEST, BAR, GAP = 760, 290, 400, 18, 6
OURS, OTHERS, INK = "#76b900", "#9aa0a6", "#333"


def draw(results):
    """Return the figure; bars are to scale within a case."""
    parts, y = [], 30
    text = '<text x="{}" y="{}" fill="{}"{}>{}</text>'
    title = (
        f"Samples a second, medians of {results['rounds']} rounds on {results['surroundings']['cpus']} cores"
    )
    parts.append(text.format(12, 20, INK, ' font-weight="bold"', escape(title)))
    for label, case, bars in CASES:
        rows = results["cases"].get(case, {}).get("rows", {})
        if not all(name in rows for _, name in bars):
            continue
        most = max(rows[name]["metric"]["median"] for _, name in bars)
        y += 24
        parts.append(text.format(12, y - 8, INK, "", escape(label)))
        for who, name in bars:
            value = rows[name]["metric"]["median"]
            width = round(LONGEST * value / most)
            colour = OURS if name.startswith("ours") else OTHERS
            parts.append(text.format(LEFT - 8, y + BAR - 5, INK, ' text-anchor="end"', escape(who)))
            parts.append(f'<rect x="{LEFT}" y="{y}" width="{width}" height="{BAR}" fill="{colour}"/>')
            parts.append(text.format(LEFT + width + 6, y + BAR - 5, INK, "", f"{value:.0f}"))
            y += BAR + GAP
    height = y + 10
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
        f' font-family="sans-serif" font-size="13" role="img" aria-label="{escape(title)}">'
    )
    return "\n".join([head, f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>', *parts, "</svg>\n"])


if __name__ == "__main__":
    import json

    SVG.write_text(draw(json.loads(pathlib.Path(__file__).with_name("table.json").read_text())))
