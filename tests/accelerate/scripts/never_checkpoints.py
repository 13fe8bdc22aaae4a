"""A script that trains and evaluates with Accelerate, and never saves anything."""

from __future__ import annotations

import argparse
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau, StepLR
from torch.utils.data import DataLoader
from training_parts import Counter, Net, Notes, Samples, Stream, digest, ended, loss_of, ranked


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--log", required=True)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--scheduler", choices=("step", "epoch", "plateau"), default="step")
    parser.add_argument("--unprepared", action="store_true", help="the scheduler is not prepared")
    parser.add_argument("--mixed-precision", default="no")
    parser.add_argument("--stateful", action="store_true")
    parser.add_argument("--seedable", action="store_true")
    parser.add_argument("--set-epoch", action="store_true")
    parser.add_argument("--stream", action="store_true")
    parser.add_argument("--dispatch", action="store_true")
    parser.add_argument("--norm", action="store_true", help="batch normalisation")
    parser.add_argument("--evaluated", type=int, default=10, help="samples")
    parser.add_argument("--even", type=int, default=1, help="batches for all processes alike")
    parser.add_argument("--overflow", type=int, help="with a scaler, which meets an overflow at this sample")
    parser.add_argument("--max-steps", type=int, default=0, help="the script counts them, and then stops")
    parser.add_argument("--evaluate-every", type=int, default=0, help="steps, beside the end of each epoch")
    parser.add_argument("--break-at", type=int, default=0, help="leave each epoch after so many batches")
    return parser.parse_args()


def schedule(kind: str, optimizer: torch.optim.Optimizer) -> Any:
    if kind == "plateau":
        return ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=0.9)
    if kind == "epoch":
        return StepLR(optimizer, 1, 0.5)
    return LambdaLR(optimizer, lambda step: 1 / (1 + 0.05 * step))


def evaluate(accelerator: Accelerator, model: Any, loader: Any) -> float:
    """The mean loss over all samples; their augmentation draws from the global streams."""
    model.eval()
    losses = []
    for _, x in loader:
        with torch.no_grad():
            each = (model(x) - x.sum(1)).square() + 0.01 * torch.rand(len(x))
        losses.append(accelerator.gather_for_metrics(each))
    model.train()
    assert len(torch.cat(losses)) == len(loader.dataset), "each sample counts once"
    return float(torch.cat(losses).mean())


def main() -> None:
    args = parse()
    config = DataLoaderConfiguration(
        use_stateful_dataloader=args.stateful,
        use_seedable_sampler=args.seedable,
        dispatch_batches=True if args.dispatch else None,
        even_batches=bool(args.even),
    )
    accelerator = Accelerator(
        cpu=True,
        gradient_accumulation_steps=args.accumulate,
        mixed_precision=args.mixed_precision,
        dataloader_config=config,
    )
    if args.overflow is not None:  # Accelerate makes none on a CPU
        accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=3)
    set_seed(args.seed)
    notes = Notes(ranked(args.log))
    net, steps = Net(norm=args.norm), Counter()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    scheduler = schedule(args.scheduler, optimizer)
    data: Any = Stream(args.samples) if args.stream else Samples(args.samples)
    shuffle = None if args.stream else True
    train = DataLoader(
        data, args.batch_size, shuffle=shuffle, num_workers=args.workers, drop_last=args.stream
    )
    valid = DataLoader(Samples(args.evaluated), batch_size=args.batch_size)
    model, optimizer, train, valid = accelerator.prepare(net, optimizer, train, valid)
    scheduler = scheduler if args.unprepared else accelerator.prepare(scheduler)
    accelerator.register_for_checkpointing(steps)

    done = 0
    for epoch in range(args.epochs):
        if args.set_epoch:
            train.set_epoch(epoch)
        model.train()
        for index, (ids, x) in enumerate(train):
            with accelerator.accumulate(model):
                with accelerator.autocast():
                    loss = loss_of(model(x), x)
                rate = optimizer.param_groups[0]["lr"]
                scale = accelerator.scaler.get_scale() if accelerator.scaler is not None else None
                notes.write(
                    "batch", epoch=epoch, ids=ids.tolist(), x=digest(x), hidden=digest(net.hidden),
                    loss=loss.item(), lr=rate, scale=scale,
                    all=(accelerator.gather_for_metrics(ids) if args.even else ids).tolist(),
                )  # fmt: skip
                if args.overflow is not None and args.overflow in ids:
                    loss = loss * torch.inf
                accelerator.backward(loss)
                if accelerator.sync_gradients and accelerator.scaler is None:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                if args.scheduler == "step":
                    scheduler.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                done += 1
                steps.value += 1
                notes.write("stepped", epoch=epoch, step=steps.value)
                if args.evaluate_every and steps.value % args.evaluate_every == 0:
                    notes.write("evaluated", epoch=epoch, metric=evaluate(accelerator, model, valid))
            if index + 1 == args.break_at or done == args.max_steps > 0:
                break
        if args.max_steps:
            if done == args.max_steps:
                break
            continue
        metric = evaluate(accelerator, model, valid)
        if args.scheduler == "plateau":
            scheduler.step(metric)
        elif args.scheduler == "epoch":
            scheduler.step()
        notes.write("epoch", epoch=epoch, metric=metric)
    ended(notes, args.weights, net)
    accelerator.end_training()


if __name__ == "__main__":
    main()
