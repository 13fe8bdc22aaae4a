"""L6. ``durable preflight``: what a run will need, tried before it starts."""

from __future__ import annotations

import click

from durable_core.cli.options import size
from durable_core.cli.output import FAILED, OK, Answer, Table, epilog, show


@click.command("preflight", epilog=epilog())
@click.argument("root", metavar="ROOT")
@click.option("--spec", "spec_file", metavar="FILE", help="The run file that the run will be launched with.")
@click.option("--nproc", type=click.IntRange(min=1), default=1, show_default=True, help="Workers here.")
@click.option("--nnodes", type=click.IntRange(min=1), default=1, show_default=True, help="Hosts of as many.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), help="Default: what is there.")
@click.option("--data", metavar="MANIFEST", default="", help="Of the dataset that it will read.")
@click.option("--data-root", default="", help="Where the objects are. Default: as the manifest says.")
@click.option("--cache", metavar="DIR", default="", help="The cache of data objects on this host.")
@click.option("--state-bytes", callback=size, help="One checkpoint (8GiB). Default: as the newest one.")
@click.option("--peer-copies", type=click.IntRange(min=0), default=0, help="Of other hosts' state held here.")
@click.option("--link", callback=size, help="Bytes per second that a sum must reach.")
@click.option("--quick", is_flag=True, help="Only what runs before every start.")
@click.option("--only", multiple=True, metavar="CHECK", help="This check alone; may be given again.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout, nothing else.")
def preflight(
    root: str, spec_file: str | None, nproc: int, nnodes: int, device: str | None, data: str,
    data_root: str, cache: str, state_bytes: int | None, peer_copies: int, link: int | None, quick: bool,
    only: tuple[str, ...], as_json: bool,
) -> int:  # fmt: skip
    """Try what a run at ROOT will need.

    Each check says ok, failed or not applicable, with its evidence and the way out. What is written below
    ROOT is removed again. Ends with 1 when a check fails.
    """
    from durable_core.engine.roots import open_root
    from durable_core.launch.preflight import Node, Target, run
    from durable_core.spec import RunSpec, runfile

    spec = RunSpec() if spec_file is None else runfile.read(spec_file).freeze().spec
    target = Target(
        open_root(root), spec, workers=nproc * nnodes, local=nproc, nodes={"this node": Node.here()},
        device=device or "", data=data, data_root=data_root, cache=cache, state_bytes=state_bytes,
        peer_copies=peer_copies, link_bytes_per_second=link,
    )  # fmt: skip
    report = run(target, quick=quick, only=only)
    rows = [
        (each.check, each.outcome.value, f"{each.seconds:.2f} s", each.evidence, each.hint or None)
        for each in report.results
    ]
    human: list[Table | str] = [Table(("check", "", "took", "evidence", "way out"), rows)]
    count = len(report.failed)
    human.append(f"{count} of {len(rows)} checks FAILED" if count else "nothing stands in the way")
    return show(Answer(report.to_json(), human, OK if report.passed else FAILED), as_json=as_json)
