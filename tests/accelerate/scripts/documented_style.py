"""Saving and resuming as Accelerate's documentation shows it: ``save_state``, ``load_state``, the position in
the data from the name of the directory, ``skip_first_batches``."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, ProjectConfiguration, set_seed
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader
from training_parts import Counter, Net, Notes, Samples, digest, ended, loss_of, ranked


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--log", required=True)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--output-dir", type=Path, required=True)
    parser.add_argument("--checkpointing-steps", help='a number of steps, or "epoch"')
    parser.add_argument("--resume-from-checkpoint", help='a directory, or "latest"')
    parser.add_argument("--with-auto-naming", action="store_true")
    parser.add_argument("--total-limit", type=int)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--stateful", action="store_true")
    parser.add_argument("--seedable", action="store_true")
    return parser.parse_args()


def newest(directory: Path) -> Path:
    return max(directory.glob("*_*"), key=lambda path: (path.stat().st_mtime_ns, path.name))


def resume(
    args: argparse.Namespace, accelerator: Accelerator, done: Counter, batches: int
) -> tuple[int, int | None]:
    """Where the script believes it is: the epoch, and the batches of it that are done."""
    if args.resume_from_checkpoint is None:
        return 0, None
    if args.with_auto_naming:
        accelerator.load_state()
        return done.value // batches, done.value % batches
    if args.resume_from_checkpoint == "latest":
        path = newest(args.output_dir)
    else:
        path = Path(args.resume_from_checkpoint)
    accelerator.print(f"Resumed from checkpoint: {path}")
    accelerator.load_state(str(path))
    kind, _, number = path.name.rpartition("_")
    if kind == "epoch":
        return int(number) + 1, None
    return int(number) // batches, int(number) % batches


def main() -> None:
    args = parse()
    project = ProjectConfiguration(
        project_dir=str(args.output_dir),
        automatic_checkpoint_naming=args.with_auto_naming,
        total_limit=args.total_limit,
    )
    accelerator = Accelerator(
        cpu=True,
        gradient_accumulation_steps=args.accumulate,
        project_config=project,
        dataloader_config=DataLoaderConfiguration(
            use_stateful_dataloader=args.stateful, use_seedable_sampler=args.seedable
        ),
    )
    set_seed(args.seed)
    notes = Notes(ranked(args.log))
    net, done = Net(), Counter()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    scheduler = LambdaLR(optimizer, lambda step: 1 / (1 + 0.05 * step))
    train = DataLoader(Samples(args.samples), batch_size=4, shuffle=True, num_workers=args.workers)
    model, optimizer, train, scheduler = accelerator.prepare(net, optimizer, train, scheduler)
    if args.with_auto_naming:
        accelerator.register_for_checkpointing(done)
    every = args.checkpointing_steps
    every_steps = int(every) if every and every != "epoch" else 0

    starting_epoch, resume_step = resume(args, accelerator, done, len(train))
    overall_step = starting_epoch * len(train)
    for epoch in range(starting_epoch, args.epochs):
        model.train()
        if epoch == starting_epoch and resume_step is not None:
            active = accelerator.skip_first_batches(train, resume_step)
            overall_step += resume_step
        else:
            active = train
        for ids, x in active:
            with accelerator.accumulate(model):
                loss = loss_of(model(x), x)
                notes.write(
                    "batch", epoch=epoch, ids=ids.tolist(), x=digest(x), hidden=digest(net.hidden),
                    loss=loss.item(), lr=scheduler.get_last_lr()[0],
                )  # fmt: skip
                accelerator.backward(loss)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            overall_step += 1
            done.value += 1
            if every_steps and overall_step % every_steps == 0:
                if args.with_auto_naming:
                    accelerator.save_state()
                else:
                    accelerator.save_state(str(args.output_dir / f"step_{overall_step}"))
                notes.write("saved", epoch=epoch)
        if every == "epoch":
            accelerator.save_state(str(args.output_dir / f"epoch_{epoch}"))
            notes.write("saved", epoch=epoch)
    ended(notes, args.weights, net)
    accelerator.end_training()


if __name__ == "__main__":
    main()
