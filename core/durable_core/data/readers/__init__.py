"""L3. Readers: records of immutable objects by ordinal, one module a format (see ``registry``)."""

from durable_core.data.readers.base import Held as Held
from durable_core.data.readers.base import ObjectIndex as ObjectIndex
from durable_core.data.readers.base import ObjectReader as ObjectReader
from durable_core.data.readers.base import Record as Record
from durable_core.data.readers.registry import Format as Format
from durable_core.data.readers.registry import check_unique as check_unique
from durable_core.data.readers.registry import companion_of as companion_of
from durable_core.data.readers.registry import detect as detect
from durable_core.data.readers.registry import index_object as index_object
from durable_core.data.readers.registry import open_object as open_object
from durable_core.data.readers.registry import parse as parse
