"""Host tensors on a device: storage spans copied as they lie, so that strides stay and no byte beyond them exists."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from ..errors import DriverError
from .driver import Driver

#: Bytes up to which the gaps of a span are copied along; beyond, only the rows are.
COPY_WHOLE = 64 * 2**20


@dataclass(frozen=True, slots=True)
class HostArray:
    """A strided array in host memory.

    Attributes:
        address: of the element at index 0.
        shape, strides: strides in elements, none negative.
        itemsize: bytes an element.
    """

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int

    @property
    def span(self) -> int:
        """Bytes from the first element to the end of the last."""
        if 0 in self.shape:
            return 0
        last = sum((length - 1) * stride for length, stride in zip(self.shape, self.strides, strict=True))
        return (last + 1) * self.itemsize

    def runs(self) -> Iterator[tuple[int, int]]:
        """(byte offset, byte length) of each contiguous row along the last dimension."""
        *outer_shape, length = self.shape
        *outer_strides, stride = self.strides
        assert stride == 1 or length == 1
        for index in itertools.product(*(range(n) for n in outer_shape)):
            offset = sum(i * s for i, s in zip(index, outer_strides, strict=True))
            yield offset * self.itemsize, length * self.itemsize

    @property
    def size(self) -> int:
        """Bytes of the elements alone."""
        size = self.itemsize
        for length in self.shape:
            size *= length
        return size


class Staging:
    """Device memory of one call."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._owned: list[int] = []

    def allocate(self, size: int) -> int:
        """Device memory that lives until the end of the call."""
        address = self._driver.malloc(max(size, 1))
        self._owned.append(address)
        return address

    def upload(self, array: HostArray) -> int:
        """A copy of `array` with the same strides; the device address of its first element."""
        span = array.span
        # As far off 16 bytes as the original, so that a kernel meets the same alignment as on a device of its own.
        offset = array.address % 16
        device = self.allocate(offset + span) + offset
        # A huge sparse view keeps its gaps unwritten: what nobody reads need not be copied.
        if span <= COPY_WHOLE or span <= 4 * array.size:
            self._driver.copy_to_device(device, array.address, span)
        else:
            for offset, length in array.runs():
                self._driver.copy_to_device(device + offset, array.address + offset, length)
        return device

    def output(self, array: HostArray) -> int:
        """Device memory for a dense result, filled with NaN so that a cell nobody writes shows."""
        device = self.allocate(array.span)
        self._driver.memset(device, 0xFF, array.span)
        return device

    def download(self, array: HostArray, device: int) -> None:
        """Copy a dense result back, after all work of the null stream."""
        self._driver.copy_to_host(array.address, device, array.span)

    def release(self) -> None:
        """Free everything; what cannot be freed keeps nothing else from it.

        Raises:
            DriverError: something could not be freed, the first trouble.
        """
        trouble: DriverError | None = None
        while self._owned:
            try:
                self._driver.free(self._owned.pop())
            except DriverError as error:
                trouble = trouble or error
        if trouble is not None:
            raise trouble


@contextmanager
def staging(driver: Driver) -> Iterator[Staging]:
    """A `Staging` that is released at the end of the block, also after an error."""
    stage = Staging(driver)
    try:
        yield stage
    except BaseException:
        # After a fault on the device nothing can be freed either; the fault is what must be told.
        with suppress(DriverError):
            stage.release()
        raise
    stage.release()
