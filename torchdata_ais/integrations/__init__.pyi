from .hugging_face import to_hf as to_hf
from .hugging_face import trainer_callback as trainer_callback
from .lightning import lightning_data as lightning_data
from .metrics import OpenTelemetryStats as OpenTelemetryStats
from .metrics import TensorBoardStats as TensorBoardStats
from .metrics import WandbStats as WandbStats
from .nodes import as_node as as_node
