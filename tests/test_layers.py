"""The shape of the house, read from the source: who may import whom, and what nobody may do.

Every rule is one row of a table below; a failure names file, line and rule. The tables are those of
``core/design/0001-foundation.md``: change both or neither.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = (ROOT / "core", ROOT / "src")
OURS = ("durable_core", "lightning_durable", "accelerate_durable")

#: module prefix -> layer. A module may import lower layers and its own package, never a sibling.
LAYERS = {
    "durable_core.errors": 0,
    "durable_core.types": 0,
    "durable_core.clock": 1,
    "durable_core.spec": 1,
    "durable_core.threads": 1,
    "durable_core.events": 1,
    "durable_core.format": 2,
    "durable_core.commit": 3,
    "durable_core.tier": 3,
    "durable_core.state": 3,
    "durable_core.data": 3,
    "durable_core.detect": 3,
    "durable_core.engine": 4,
    "durable_core.session": 5,
    "durable_core.launch": 5,
    "durable_core.cli": 6,
    "durable_core.testing": 6,
    "durable_core": 6,  # the package's own face: names, imported lazily
    "lightning_durable": 7,
    "accelerate_durable": 7,
}
FREE_AMONG_THEMSELVES = 6  # `cli`, `testing` and the face may use all below and one another

ANYWHERE = ("",)
#: third-party or standard module -> the module prefixes that may import it.
ONLY_IN = {
    "torch": (
        "durable_core.state",
        "durable_core.data.sampler",
        "durable_core.data.loader",
        "durable_core.engine.export",
        "durable_core.engine.export_hf",
        "durable_core.engine.plain_files",
        "durable_core.engine.restore",
        "durable_core.engine.staged",
        "durable_core.session",
        "durable_core.launch.agent",
        "durable_core.launch.rendezvous",
        "durable_core.launch.preflight.child",
        "durable_core.testing",
        "lightning_durable",
        "accelerate_durable",
    ),
    "time": ("durable_core.clock",),
    "random": (
        "durable_core.clock",
        "durable_core.state.rng",
        "durable_core.data.rng",
        "durable_core.data.loader.reading.global_streams",
        "durable_core.testing",
    ),
    "uuid": ("durable_core.clock",),
    "lightning": ("lightning_durable",),
    "pytorch_lightning": (),
    "accelerate": ("accelerate_durable",),
    "transformers": ("accelerate_durable",),
    "yaml": ("durable_core.spec",),
    "click": ("durable_core.cli",),
    "rich": ("durable_core.cli",),
    "pytest": ("durable_core.testing",),
    "aiobotocore": ("durable_core.tier.remote",),
    "aiohttp": ("durable_core.tier.remote", "durable_core.data.stores"),
    "botocore": ("durable_core.tier.remote", "durable_core.data.stores"),
    "fsspec": ("durable_core.tier.remote", "durable_core.data.stores"),
    "obstore": ("durable_core.tier.remote",),
    "pyarrow": ("durable_core.data.readers",),
    "zstandard": ("durable_core.data.readers",),
    "datasets": (),
    "webdataset": (),
    "s3fs": ("durable_core.tier.remote",),
    "pickle": (),
    "dill": (),
    "cloudpickle": (),
    "marshal": (),
    "shelve": (),
}
FORBIDDEN_CALLS = ("eval", "exec", "torch.load", "datetime.now", "datetime.utcnow", "datetime.today")
MAX_FILE_LINES = 450
MAX_FUNCTION_LINES = 80

#: modules that must start in milliseconds: the protocol and the command line.
TORCH_FREE = (
    "durable_core.errors",
    "durable_core.types",
    "durable_core.format",
    "durable_core.commit",
    "durable_core.tier",
    "durable_core.state.snapshots",
    "durable_core.cli",
)


@dataclass(frozen=True)
class Module:
    name: str
    path: Path
    text: str
    tree: ast.Module

    def at(self, node: ast.AST, complaint: str) -> str:
        return f"{self.path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}: {complaint}"


def modules() -> list[Module]:
    found = []
    for base in SOURCES:
        for path in sorted(base.rglob("*.py")):
            parts = path.relative_to(base).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            text = path.read_text(encoding="utf-8")
            found.append(Module(name, path, text, ast.parse(text, filename=str(path))))
    return found


MODULES = modules()
KNOWN = {module.name for module in MODULES}


def within(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(prefix + ".")


def package_of(name: str) -> str | None:
    """The longest row of ``LAYERS`` that ``name`` falls under."""
    rows = [row for row in LAYERS if within(name, row)]
    return max(rows, key=len, default=None)


def imports(module: Module) -> Iterator[tuple[ast.AST, str]]:
    """Every imported module, wherever the statement stands: lazily imported is still imported."""
    package = module.name if module.path.name == "__init__.py" else module.name.rpartition(".")[0]
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                deeper = f"{source}.{alias.name}"
                yield node, deeper if deeper in KNOWN else source


def layer_violations(module: Module) -> Iterator[str]:
    mine = package_of(module.name)
    if mine is None:
        yield f"{module.path.relative_to(ROOT)}: {module.name} has no row in LAYERS"
        return
    for node, target in imports(module):
        theirs = package_of(target)
        if theirs is None or theirs == mine:
            continue
        above = LAYERS[theirs] > LAYERS[mine]
        sibling = LAYERS[theirs] == LAYERS[mine] != FREE_AMONG_THEMSELVES
        if above or sibling:
            what = "a higher layer" if above else "a sibling"
            yield module.at(node, f"{mine} (L{LAYERS[mine]}) imports {theirs} (L{LAYERS[theirs]}), {what}")


def foreign_violations(module: Module) -> Iterator[str]:
    for node, target in imports(module):
        top = target.partition(".")[0]
        allowed = ONLY_IN.get(top, ANYWHERE)
        if allowed is not ANYWHERE and not any(within(module.name, prefix) for prefix in allowed):
            yield module.at(node, f"imports {top}, which only {', '.join(allowed) or 'nobody'} may")


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def call_violations(module: Module) -> Iterator[str]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call):
            name = dotted(node.func)
            tail = ".".join(name.split(".")[-2:])  # `eval`, `torch.load`; not `self.eval`, `model.eval`
            if tail in FORBIDDEN_CALLS:
                yield module.at(node, f"calls {name}()")
            if any(keyword.arg == "allow_pickle" for keyword in node.keywords):
                yield module.at(node, f"passes allow_pickle to {name}()")


#: the one edge of a thread: what it catches is raised on the training thread at the next boundary.
HANDS_ON = ("durable_core.engine.worker",)


def swallow_violations(module: Module) -> Iterator[str]:
    if module.name in HANDS_ON:
        return
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.ExceptHandler):
            continue
        caught = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
        blanket = [c for c in caught if c is None or dotted(c) in ("Exception", "BaseException")]
        raises = any(isinstance(inner, ast.Raise) for inner in ast.walk(node))
        if blanket and not raises:
            yield module.at(node, "catches everything and raises nothing")


def size_violations(module: Module) -> Iterator[str]:
    lines = len(module.text.splitlines())
    if lines > MAX_FILE_LINES:
        yield f"{module.path.relative_to(ROOT)}: {lines} lines, at most {MAX_FILE_LINES}"
    for node in ast.walk(module.tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.end_lineno is not None:
            length = node.end_lineno - node.lineno + 1
            if length > MAX_FUNCTION_LINES:
                yield module.at(node, f"{node.name} has {length} lines, at most {MAX_FUNCTION_LINES}")


RULES: dict[str, Callable[[Module], Iterator[str]]] = {
    "layers": layer_violations,
    "imports": foreign_violations,
    "calls": call_violations,
    "swallowing": swallow_violations,
    "sizes": size_violations,
}


@pytest.mark.parametrize("rule", RULES)
def test_the_source_keeps_the_rule(rule: str) -> None:
    faults = [fault for module in MODULES for fault in RULES[rule](module)]
    assert not faults, "\n" + "\n".join(faults)


@pytest.mark.parametrize(
    ("rule", "name", "source"),
    [
        ("layers", "durable_core.commit.fold", "from durable_core.engine import probe"),
        ("layers", "durable_core.commit.fold", "import durable_core.tier.base"),
        ("layers", "durable_core.errors", "from durable_core.types import CrashPoint"),
        ("layers", "durable_core.format.record", "def f():\n    from ..commit import fold"),
        ("layers", "durable_elsewhere", "import ast"),
        ("imports", "durable_core.commit.save", "import time"),
        ("imports", "durable_core.format.codec", "import pickle"),
        ("imports", "durable_core.session.session", "from lightning import Trainer"),
        ("imports", "durable_core.tier.posix", "import torch.nn"),
        ("calls", "durable_core.state.tree", "eval('1')"),
        ("calls", "durable_core.state.tree", "import torch as torch\ntorch.load('x')"),
        ("calls", "durable_core.cli.ls", "datetime.datetime.now()"),
        ("swallowing", "durable_core.engine.engine", "try: f()\nexcept (OSError, Exception): pass"),
        ("swallowing", "durable_core.engine.engine", "try: f()\nexcept: g()"),
        ("sizes", "durable_core.cli.ls", "def f():\n" + "    pass\n" * (MAX_FUNCTION_LINES + 1)),
    ],
)
def test_the_rule_finds_a_planted_fault(rule: str, name: str, source: str) -> None:
    path = ROOT.joinpath("core", *name.split(".")).with_suffix(".py")
    assert list(RULES[rule](Module(name, path, source, ast.parse(source))))


def test_the_protocol_and_the_command_line_start_without_torch() -> None:
    wanted = [module.name for module in MODULES if any(within(module.name, row) for row in TORCH_FREE)]
    code = (
        "import importlib, sys\n"
        f"sys.path[:0] = {[str(base) for base in SOURCES]!r}\n"
        f"for name in {[name for name in wanted if not name.endswith('__main__')]!r}:\n"
        "    importlib.import_module(name)\n"
        "    assert 'torch' not in sys.modules, f'{name} imports torch'\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
