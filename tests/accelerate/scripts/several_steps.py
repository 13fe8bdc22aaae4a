"""Steps of several batches each, beside batches of several steps each: the script says when one is done."""

from __future__ import annotations

import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader
from training_parts import Net, Notes, Samples, digest, ended, loss_of, ranked


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--log", required=True)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--rollout", type=int, default=2, help="batches of a rollout")
    parser.add_argument("--times", type=int, default=3, help="steps on each rollout")
    return parser.parse_args()


def main() -> None:
    args = parse()
    accelerator = Accelerator(cpu=True)
    set_seed(3)
    notes = Notes(ranked(args.log))
    net = Net()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    train = DataLoader(Samples(), batch_size=4, shuffle=True)
    model, optimizer, train = accelerator.prepare(net, optimizer, train)
    accelerator.commit()
    for epoch in range(2):
        rollout = []
        for ids, x in train:
            rollout.append((ids, x))
            optimizer.zero_grad()
            accelerator.backward(loss_of(model(x), x))
            optimizer.step()  # a rollout is not over for that
            notes.write("batch", epoch=epoch, ids=ids.tolist(), x=digest(x), hidden=digest(net.hidden))
            if len(rollout) < args.rollout:
                continue
            for _ in range(args.times):
                ids, x = rollout[int(torch.randint(len(rollout), ()))]
                optimizer.zero_grad()
                accelerator.backward(loss_of(model(x), x))
                optimizer.step()
                notes.write("again", epoch=epoch, ids=ids.tolist(), hidden=digest(net.hidden))
            rollout = []
            accelerator.commit()
    ended(notes, args.weights, net)
    accelerator.end_training()


if __name__ == "__main__":
    main()
