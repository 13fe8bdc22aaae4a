"""L5. What a standby imports before it knows its worker: a look at the script, without running it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

#: Packages whose import only loads code, as far as is known: whether it did so is looked at afterwards
#: (``safety``). Not pyarrow, which starts a thread, nor what brings it: a worker imports that by itself in
#: less time than a standby that cannot fork takes. Above all not what lies beside the script: a restart is to
#: run the code as it is then.
_KNOWN = frozenset(
    {
        "accelerate", "accelerate_durable", "durable_core", "einops", "lightning", "lightning_durable",
        "numpy", "peft", "pytorch_lightning", "safetensors", "scipy", "sentencepiece", "tiktoken", "timm",
        "tokenizers", "torch", "torchaudio", "torchmetrics", "torchvision", "transformers",
    }
)  # fmt: skip
#: What these import when they are first used, which takes as long as the import itself.
_LATER = {
    "torch": ("torch.distributed", "torch.nn.parallel", "torch._dynamo"),
    "durable_core": ("durable_core.session.plain",),
    "lightning_durable": ("durable_core.session.plain",),
    "accelerate_durable": ("durable_core.session.plain",),
}
_ALWAYS = ("numpy", "torch", "durable_core")
_MOST_FILES = 200


def wanted(script: Path, folder: Path, extra: Sequence[str] = ()) -> tuple[str, ...]:
    """Modules to import, in order: those of the script's top level, and of the top level of modules beside
    it.

    ``folder``: what the worker has first on its path. ``extra``: what the user names; their code is then as
    it was when the standby was started. A file that cannot be read or parsed adds nothing: the worker will
    say what is wrong with it.
    """
    local = beside(folder)
    found = [*_ALWAYS, *(name for name in _imported(script, folder) if name.partition(".")[0] in _KNOWN)]
    chosen: dict[str, None] = {}
    for name in (*found, *extra):
        if name.partition(".")[0] not in local or name in extra:
            chosen.update(dict.fromkeys((name, *_LATER.get(name.partition(".")[0], ()))))
    return tuple(chosen)


def beside(folder: Path) -> frozenset[str]:
    """Names that are the user's own modules, for a script's folder comes first on the path."""
    try:
        return frozenset(
            path.stem for path in folder.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
        )
    except OSError:
        return frozenset()


def located(module: str) -> Path:
    """The file of ``python -m module`` under the working directory, if it is there."""
    stem = Path.cwd().joinpath(*module.split("."))
    return stem / "__main__.py" if stem.is_dir() else stem.with_suffix(".py")


def shadowed(local: frozenset[str], before: frozenset[str]) -> tuple[str, ...]:
    """Of ``local``, what has been imported since ``before`` from somewhere else: the worker would get the
    wrong one."""
    return tuple(sorted(local & (frozenset(sys.modules) - before)))


def _imported(script: Path, folder: Path) -> Iterator[str]:
    todo, seen = [script], {script}
    while todo and len(seen) <= _MOST_FILES:
        for name in _top_level(todo.pop()):
            yield name
            stem = folder.joinpath(*name.split("."))
            member = (
                [stem.parent.with_suffix(".py")] if "." in name else []
            )  # `name` may be an attribute of it
            for path in (stem.with_suffix(".py"), stem / "__init__.py", *member):
                if path not in seen and path.is_file():
                    seen.add(path)
                    todo.append(path)


def _top_level(path: Path) -> Iterator[str]:
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
