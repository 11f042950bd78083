from .conversion import Conversion as Conversion
from .conversion import Edit as Edit
from .conversion import SourceOptions as SourceOptions
from .conversion import convert as convert
from .manifest import Manifest as Manifest
from .manifest import ShardInfo as ShardInfo
from .shard_writer import ShardWriter as ShardWriter
from .tar_writer import TarWriter as TarWriter
