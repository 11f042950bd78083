"""Small sounds and their values as soundfile reads them, stored in soundfile_values.json.

    python tests/unit/codecs/soundfile_values.py

writes the file anew. It was written with soundfile 0.14 (libsndfile 1.2.2).
"""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path

import numpy as np

FILE = Path(__file__).with_suffix(".json")
EVERY = 97
"""Of the frames, those are stored whose number this divides."""

KINDS = {
    "wav": ("WAV", "PCM_16"),
    "wav24": ("WAV", "PCM_24"),
    "flac": ("FLAC", "PCM_16"),
    "ogg": ("OGG", "VORBIS"),
    "opus": ("OGG", "OPUS"),
    "mp3": ("MP3", "MPEG_LAYER_III"),
    "aiff": ("AIFF", "PCM_16"),
    "au": ("AU", "PCM_16"),
}


def main() -> None:
    """Write the file."""
    import soundfile

    time = np.arange(2000) / 8000
    wave = np.stack([np.sin(2 * np.pi * 440 * time) * 0.5, np.linspace(-0.4, 0.4, len(time))], 1)
    rows = {}
    for name, (container, coding) in KINDS.items():
        stream = io.BytesIO()
        soundfile.write(stream, wave, 8000, coding, format=container)
        values, rate = soundfile.read(io.BytesIO(stream.getvalue()), dtype="float32", always_2d=True)
        rows[name] = {
            "data": base64.b64encode(stream.getvalue()).decode(),
            "rate": rate,
            "frames": len(values),
            "values": values[::EVERY].round(6).tolist(),
        }
    FILE.write_text(
        "{\n" + ",\n".join(f" {json.dumps(k)}: {json.dumps(row)}" for k, row in rows.items()) + "\n}\n"
    )


if __name__ == "__main__":
    main()
