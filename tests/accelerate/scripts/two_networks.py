"""A generator and a discriminator: two models, two optimizers, two schedulers, an average registered. The
generator may step less often; its gradients are summed up over the steps of the other."""

from __future__ import annotations

import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy
from torch.optim.lr_scheduler import ExponentialLR, StepLR
from torch.utils.data import DataLoader
from training_parts import WIDTH, Counter, Notes, Samples, digest, ended, ranked


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--log", required=True)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--generator-every", type=int, default=1, help="steps of the discriminator")
    return parser.parse_args()


def network(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, outputs))


class Average:
    """An exponential moving average of weights, and how many it is of."""

    def __init__(self, module: nn.Module) -> None:
        self.values = [value.detach().clone() for value in module.parameters()]
        self.count = 0

    def update(self, module: nn.Module) -> None:
        self.count += 1
        for mine, theirs in zip(self.values, module.parameters(), strict=True):
            mine.lerp_(theirs.detach(), 0.1)

    def state_dict(self) -> dict[str, object]:
        return {"values": self.values, "count": self.count}

    def load_state_dict(self, state: dict[str, object]) -> None:
        self.values = [value.clone() for value in state["values"]]
        self.count = state["count"]


def main() -> None:
    args = parse()
    accelerator = Accelerator(cpu=True)
    set_seed(5)
    notes = Notes(ranked(args.log))
    generator, judge = network(3, WIDTH), network(WIDTH, 1)
    average, done = Average(generator), Counter()
    for_generator = torch.optim.Adam(generator.parameters(), lr=0.02)
    for_judge = torch.optim.RMSprop(judge.parameters(), lr=0.01)
    train = DataLoader(Samples(), batch_size=8, shuffle=True)
    slower, lower = StepLR(for_generator, 6, 0.7), ExponentialLR(for_judge, 0.97)
    prepared = accelerator.prepare(generator, judge, for_generator, for_judge, train, slower, lower)
    generator, judge, for_generator, for_judge, train, slower, lower = prepared
    accelerator.register_for_checkpointing(average, done)

    for epoch in range(args.epochs):
        for ids, real in train:
            made = generator(torch.randn(len(real), 3))
            ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
            loss = cross_entropy(judge(real), ones) + cross_entropy(judge(made.detach()), zeros)
            for_judge.zero_grad()
            accelerator.backward(loss)
            for_judge.step()
            lower.step()
            notes.write(
                "batch", epoch=epoch, ids=ids.tolist(), x=digest(real), hidden=digest(made), loss=loss.item(),
                lr=[group["lr"] for one in (for_generator, for_judge) for group in one.param_groups],
                average=digest(*average.values), count=average.count,
            )  # fmt: skip
            accelerator.backward(cross_entropy(judge(made), ones))
            done.value += 1
            if done.value % args.generator_every == 0:
                for_generator.step()
                for_generator.zero_grad()
                slower.step()
                average.update(generator)
            notes.write("stepped", epoch=epoch)
    ended(notes, args.weights, generator, judge)
    accelerator.end_training()


if __name__ == "__main__":
    main()
