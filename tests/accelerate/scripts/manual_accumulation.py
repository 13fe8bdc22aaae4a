"""Gradients accumulated by hand, the scheduler stepped by hand, without ``accumulate()``."""

from __future__ import annotations

import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader
from training_parts import Net, Notes, Samples, digest, ended, loss_of, ranked


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--log", required=True)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--samples", type=int, default=60)
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument(
        "--window", choices=("last", "ends", "first", "counted"), default="last",
        help="the step comes with a window's last batch, and that of the epoch too; with its first, as the "
        "documentation has it; or by a count over the epochs",
    )  # fmt: skip
    return parser.parse_args()


def main() -> None:
    args = parse()
    accelerator = Accelerator(cpu=True)
    set_seed(3)
    notes = Notes(ranked(args.log))
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    scheduler = StepLR(optimizer, 5, 0.8)
    train = DataLoader(Samples(args.samples), batch_size=4, shuffle=True)
    model, optimizer, train, scheduler = accelerator.prepare(net, optimizer, train, scheduler)
    seen = 0
    for epoch in range(args.epochs):
        model.train()
        for index, (ids, x) in enumerate(train):
            loss = loss_of(model(x), x) / args.accumulate
            notes.write(
                "batch", epoch=epoch, ids=ids.tolist(), x=digest(x), hidden=digest(net.hidden),
                loss=loss.item(), lr=optimizer.param_groups[0]["lr"],
            )  # fmt: skip
            accelerator.backward(loss)
            seen += 1
            due = {
                "last": (index + 1) % args.accumulate == 0,
                "ends": (index + 1) % args.accumulate == 0 or index + 1 == len(train),
                "first": index % args.accumulate == 0,
                "counted": seen % args.accumulate == 0,
            }
            if due[args.window]:
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                notes.write("stepped", epoch=epoch)
        notes.write("epoch", epoch=epoch)
    ended(notes, args.weights, net)


if __name__ == "__main__":
    main()
