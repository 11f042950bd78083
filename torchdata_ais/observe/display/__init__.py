"""Display of data as Pillow images, and a progress bar.

Contact sheets show samples, batches, shards and loaders. A notebook shows the image that these functions return; a
script saves it with ``.save("sheet.png")``.
"""

from torchdata_ais.observe.display.progress import progress
from torchdata_ais.observe.display.shards import display_loader_images, display_shard_images
from torchdata_ais.observe.display.sheet import contact_sheet

__all__ = ["contact_sheet", "display_loader_images", "display_shard_images", "progress"]
