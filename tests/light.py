"""The package without its first import, of torch: programs of tests that need no stage start ten times as fast."""

from __future__ import annotations

from pathlib import Path

import torchdata_ais

LIGHT = f"""
import sys, types
sys.modules["torchdata_ais"] = package = types.ModuleType("torchdata_ais")
package.__path__ = [{str(Path(torchdata_ais.__file__).parent)!r}]
"""
"""What such a program begins with."""
