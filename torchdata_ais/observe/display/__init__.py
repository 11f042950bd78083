"""Looking at data: contact sheets of samples, batches, shards and loaders, as Pillow images; a progress bar.

A notebook shows the image that these functions return; a script saves it with ``.save("sheet.png")``.
"""

from torchdata_ais.observe.display.progress import progress
from torchdata_ais.observe.display.shards import display_loader_images, display_shard_images
from torchdata_ais.observe.display.sheet import contact_sheet

__all__ = ["contact_sheet", "display_loader_images", "display_shard_images", "progress"]
