"""What makes tinyarrays a framework of Opwright: one description and one small class."""

from __future__ import annotations

from typing import ClassVar

import tinyarrays

from opwright.arrays import arrays_of, refused_array
from opwright.framework_info import FrameworkInfo
from opwright.frameworks.base import RULE_KINDS, Framework, no_kernel
from opwright.frameworks.bridges import bridge
from opwright.outputs import check_aliases, output_check
from opwright.scalars import coercion

INFO = FrameworkInfo(
    "tiny",
    package="tinyarrays",
    module="opwright_tiny",
    array_classes=(("tinyarrays", "Array"),),
    annotations=(("tinyarrays", "Array", "tiny"),),
    device_types=("cpu", "xpu"),
    shares=("cpu",),
)


class Tiny(Framework):
    """Calls kernels on tinyarrays, whichever of two devices they are on."""

    name: ClassVar[str] = "tiny"
    flavour: ClassVar[str] = "tiny"
    unsupported: ClassVar = dict.fromkeys(RULE_KINDS, "tinyarrays are only called")

    def __init__(self):
        self.events = []

    def device_type(self, array):
        return array.device

    def attach(self, record):
        record.lowered[self.name] = {}

    def changed(self, event, record, item):
        self.events.append((event, record.qualname))

    def to_numpy(self, array):
        return array.data

    def from_numpy(self, array):
        return tinyarrays.Array(array)

    def from_dlpack(self, array):
        import numpy as np

        return tinyarrays.Array(np.from_dlpack(array))

    def specialise(self, record, values):
        arguments = record.schema.arguments
        made = {}

        def make(device):
            kernel = record.select_kernel(self.flavour, device)
            if kernel is None:
                raise no_kernel(record, self, device)
            check = output_check(record, kernel, self._array, self.convert, "an array of tiny")
            return bridge(kernel, self), check

        make("cpu")

        def call(*values):
            taken, device = [], "cpu"
            for argument, value in zip(arguments, values, strict=True):
                if argument.has_tensors:
                    for name, array in arrays_of(record, argument, value):
                        if self._array(array) is None:
                            return record.miss(*values)
                        if array.device not in INFO.device_types:
                            raise refused_array(record, name, array.device, "an array on cpu or xpu", None)
                        device = array.device
                    taken.append(value)
                else:
                    taken.append(coercion(record.qualname, argument)(value))
            if device not in made:
                made[device] = make(device)
            fn, check = made[device]
            count = len(record.schema.positional)
            names = [argument.name for argument in record.schema.keyword_only]
            out = check(fn(*taken[:count], **dict(zip(names, taken[count:], strict=True))))
            check_aliases(record, values, out, lambda a, b: a.data is b.data)
            return out

        return call

    @staticmethod
    def _array(value):
        return value if isinstance(value, tinyarrays.Array) else None


FRAMEWORK = Tiny()
