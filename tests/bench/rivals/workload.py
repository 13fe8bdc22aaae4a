"""The training that every variant saves: AdamW over a state of a given size, compute of a given length."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from tests.bench.rivals.meters import MIB

WIDTH = 512  # of the matrices that are multiplied


class Compute:
    """Matrix products on one thread: real work, with the interpreter lock released, and no memory traffic."""

    def __init__(self, matmuls: int) -> None:
        self._matmuls = matmuls
        self._left, self._right = torch.rand(WIDTH, WIDTH), torch.rand(WIDTH, WIDTH)
        self._product = torch.empty(WIDTH, WIDTH)

    def __call__(self) -> None:
        for _ in range(self._matmuls):
            torch.mm(self._left, self._right, out=self._product)


def matmuls_in(seconds: float) -> int:
    """How many products take that long here; measured once for all variants."""
    compute, took = Compute(8), []
    for _ in range(12):
        began = time.perf_counter()
        compute()
        took.append(time.perf_counter() - began)
    return max(1, round(seconds / (statistics.median(took[2:]) / 8)))


class Layers(nn.Module):
    def __init__(self, size_mib: int) -> None:
        super().__init__()
        elements = size_mib * MIB // 4 // 3  # each has a parameter and two moments
        count = -(-elements // MIB)  # of tensors of at most 4 MiB
        self.weights = nn.ParameterList(torch.randn(elements // count) for _ in range(count))


class Workload:
    """``model`` and ``optimizer`` with all moments in place; every step changes every byte of both."""

    def __init__(self, size_mib: int, matmuls: int) -> None:
        self.model = Layers(size_mib)
        for parameter in self.model.parameters():
            parameter.grad = torch.full_like(parameter, 0.5)  # never cleared: a backward for free
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.compute = Compute(matmuls)
        self.compute()
        self.optimizer.step()

    def tensors(self) -> Iterator[Tensor]:
        yield from (parameter.data for parameter in self.model.parameters())
        for state in self.optimizer.state.values():
            yield from (value for value in state.values() if torch.is_tensor(value))

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors())
