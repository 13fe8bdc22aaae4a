"""The site builds strictly and offline, leads nowhere that does not exist, and has an entry for all that the
code knows: a new failure, event, exit code, command, option, variable or public name fails without one."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

pytestmark = pytest.mark.skipif(
    not all(
        importlib.util.find_spec(name) for name in ("mkdocs", "material", "mkdocstrings", "mkdocs_click")
    ),
    reason="the extra docs is not installed",
)

#: Tags that make a browser fetch something, and the attribute that says what.
FETCHED = {"script": "src", "img": "src", "iframe": "src", "link": "href", "source": "src"}


@dataclass
class Page(HTMLParser):
    """What a built page is called by (``ids``), leads to (``links``) and makes a browser fetch."""

    ids: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids |= {given[name] for name in ("id", "name") if given.get(name)}
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        if tag in FETCHED and given.get(FETCHED[tag]) and given.get("rel") != "canonical":
            self.fetched.append(given[FETCHED[tag]])


@dataclass(frozen=True)
class Site:
    at: Path
    pages: dict[str, Page]

    def __getitem__(self, name: str) -> Page:
        return self.pages[f"{name}/index.html"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """Built once, strictly: a warning of any plugin is a failure."""
    at = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(at)]
    quiet = {"NO_MKDOCS_2_WARNING": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **quiet}, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    pages = {}
    for path in at.rglob("*.html"):
        page = Page()
        page.feed(path.read_text(encoding="utf-8"))
        pages[path.relative_to(at).as_posix()] = page
    return Site(at, pages)


# --- what is there, is right ------------------------------------------------------------------------


def test_every_internal_link_resolves(site: Site) -> None:
    broken = [
        f"{name}: {link}"
        for name, page in site.pages.items()
        if name != "404.html"  # it is served from anywhere, and its links begin at the site's root
        for link in page.links
        if not _resolves(site, name, link)
    ]
    assert not broken, broken


def _resolves(site: Site, name: str, link: str) -> bool:
    if urlsplit(link).scheme:
        return True
    target, anchor = urldefrag(urljoin(f"/{name}", link))
    path = unquote(target).lstrip("/")
    path = f"{path}index.html" if path.endswith("/") or not path else path
    if not (site.at / path).is_file():
        return False
    return not anchor or path not in site.pages or unquote(anchor) in site.pages[path].ids


def test_nothing_is_fetched_from_elsewhere(site: Site) -> None:
    elsewhere = {
        url for page in site.pages.values() for url in page.fetched if urlsplit(url).netloc and "://" in url
    }
    assert not elsewhere


def _blocks() -> Iterator[tuple[str, str]]:
    """(where, text) of the fenced blocks of Python; those that include a file are tested with it."""
    for path in sorted(DOCS.rglob("*.md")):
        for found in re.finditer(
            r"^([ ]*)```python\n(.*?)^\1```", path.read_text(), re.MULTILINE | re.DOTALL
        ):
            text = "\n".join(line.removeprefix(found[1]) for line in found[2].splitlines())
            if "--8<--" not in text:
                yield f"{path.relative_to(DOCS)}:{text.splitlines()[0]}", text


@pytest.mark.parametrize("block", [pytest.param(text, id=where) for where, text in _blocks()])
def test_python_compiles_and_imports_what_exists(block: str) -> None:
    for node in ast.walk(ast.parse(block)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in PACKAGES:
            if importlib.util.find_spec(_needs(node.module or "")) is None:
                pytest.skip(f"{node.module} needs what is not installed")
            module = importlib.import_module(node.module or "")
            missing = [alias.name for alias in node.names if not hasattr(module, alias.name)]
            assert not missing, f"{node.module} has no {missing}"


def _needs(module: str) -> str:
    if module == "accelerate_durable.transformers":
        return "transformers"
    return {"lightning_durable": "lightning", "accelerate_durable": "accelerate"}.get(module, "torch")


def test_options_in_yaml_are_options() -> None:
    pytest.importorskip("accelerate")
    import yaml

    from accelerate_durable import DurableOptions

    found = 0
    for path in DOCS.rglob("*.md"):
        for block in re.findall(r"^[ ]*```yaml\n(.*?)^[ ]*```", path.read_text(), re.MULTILINE | re.DOTALL):
            document = {} if "--8<--" in block else yaml.safe_load(block)
            options = document.get("durable_config", document)
            DurableOptions.of(options, path.name)
            found += bool(options)
    assert found


def _commands(text: str) -> Iterator[str]:
    """What is shown of our command line: in blocks and within sentences."""
    for block in re.findall(r"^[ ]*```\n(.*?)^[ ]*```", text, re.MULTILINE | re.DOTALL):
        yield from (line.strip() for line in block.splitlines())
    yield from re.findall(r"`(durable [^`]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))


def test_commands_and_flags_that_are_shown_exist() -> None:
    import click

    from durable_core.cli.app import app
    from durable_core.launch.agent import flags

    wrong = []
    for path in sorted(DOCS.rglob("*.md")):
        for shown in _commands(path.read_text()):
            words = shown.partition("#")[0].split(".py")[0].partition(" -- ")[0].split()
            if words[:1] != ["durable"] or len(words) == 1:
                continue
            command: click.Command | None = app
            for word in words[1:]:
                if isinstance(command, click.Group) and not word.startswith("-"):
                    command = command.commands.get(word)
            known = {option for item in getattr(command, "params", ()) for option in item.opts}
            if command is app.commands["launch"]:
                known = set(flags.parser()._option_string_actions)
            given = {word.split("=")[0] for word in words[1:] if word.startswith("-")}
            if command is None or not given <= known | {"--help", "--version", "--json"}:
                wrong.append(f"{path.name}: {shown}")
    assert not wrong, wrong


# --- what is known, is there ------------------------------------------------------------------------


PACKAGES = ("durable_core", "lightning_durable", "accelerate_durable")
#: module -> page that has its names
PUBLIC = {
    "durable_core": "reference/core",
    "durable_core.data": "reference/data",
    "lightning_durable": "reference/lightning",
    "accelerate_durable": "reference/accelerate",
    "accelerate_durable.transformers": "reference/accelerate",
}


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_has_its_entry(site: Site, module: str) -> None:
    pytest.importorskip(_needs(module))
    page, text = site[PUBLIC[module]], (DOCS / f"{PUBLIC[module]}.md").read_text()
    names = importlib.import_module(module).__all__
    full = [f"{module}.{name}" for name in names]
    assert not [name for name in full if name not in page.ids and f"`{name}`" not in text]


def test_every_failure_class_has_its_entry(site: Site) -> None:
    from durable_core.launch.classes import F

    _assert_there(site["operations/failures"], (failure.value.lower() for failure in F))
    text = (DOCS / "operations/failures.md").read_text()
    entries = re.split(r"^## F\d+: .*$", text, flags=re.MULTILINE)[1:]
    assert len(entries) == len(F)
    for entry in entries:
        assert all(f"**{part}**:" in entry for part in ("Means", "By itself", "You")), entry[:80]


def test_the_order_in_which_classes_count_is_the_one_of_the_code(site: Site) -> None:
    from durable_core.launch.classes import PRECEDENCE

    text = " ".join((DOCS / "operations/failures.md").read_text().split())
    assert ", ".join(failure.value for failure in PRECEDENCE) in text


def test_every_event_has_its_entry(site: Site) -> None:
    from durable_core.events import Event

    _assert_there(site["operations/warnings"], (event.__name__.lower() for event in Event.__subclasses__()))


def test_warnings_and_facts_are_told_apart_as_in_the_code(site: Site) -> None:
    """Whether an event becomes a warning is in one function; the page says the same of each."""
    import inspect

    from durable_core.events import Event
    from durable_core.session.notices import sentence_of

    warned = set(re.findall(r"isinstance\(event, events\.(\w+)\)", inspect.getsource(sentence_of)))
    text = (DOCS / "operations/warnings.md").read_text()
    entries = re.split(r"^### (\w+) \{#\w+\}$", text, flags=re.MULTILINE)
    said = dict(zip(entries[1::2], entries[2::2], strict=True))
    assert set(said) == {event.__name__ for event in Event.__subclasses__()}
    assert {name for name, text in said.items() if "**warning" in text.lower()} == warned


def test_every_exit_code_has_its_entry(site: Site) -> None:
    from durable_core.cli.launch import LAUNCH_EXIT_CODES

    _assert_there(site["operations/exit-codes"], (f"exit-{code}" for code in LAUNCH_EXIT_CODES))


def test_every_command_has_its_entry(site: Site) -> None:
    import click

    from durable_core.cli.app import app

    def commands(group: click.Group, path: str) -> Iterator[str]:
        for name, command in group.commands.items():
            yield f"{path}-{name}"
            if isinstance(command, click.Group):
                yield from commands(command, f"{path}-{name}")

    _assert_there(site["reference/cli"], commands(app, "durable"))


def test_every_variable_of_the_environment_is_explained() -> None:
    """Those of the product; a hook of the tests is none."""
    sources = [
        path
        for base in ("core", "src")
        for path in (ROOT / base).rglob("*.py")
        if "durable_core/testing/" not in path.as_posix()
    ]
    text = "\n".join(path.read_text() for path in sources)
    used = set(re.findall(r"(?<![A-Z_])(DURABLE_[A-Z][A-Z_]*[A-Z])\b", text)) - {"DURABLE_TEST_CRASH"}
    told = set(re.findall(r"`(DURABLE_[A-Z_]+)`", (DOCS / "reference/configuration.md").read_text()))
    assert used == told


def test_every_option_and_key_is_explained(site: Site) -> None:
    pytest.importorskip("accelerate")
    from accelerate_durable.options import option_names
    from durable_core.spec.runfile import MANDATORY

    text = (site.at / "reference/configuration/index.html").read_text()
    keys = [name for names in MANDATORY for name in names]
    assert not [name for name in (*option_names(), *keys) if f"<code>{name}</code>" not in text]


def test_every_example_has_its_recipe() -> None:
    """Included whole, so that what is shown is what is tested."""
    shown = "\n".join(path.read_text() for path in (DOCS / "recipes").glob("*.md"))
    shown += (DOCS / "reference/configuration.md").read_text()
    files = [
        path for path in (ROOT / "examples").rglob("*") if path.suffix in (".py", ".yaml", ".sh", ".sbatch")
    ]
    missing = [path for path in files if f'--8<-- "{path.relative_to(ROOT).as_posix()}"' not in shown]
    assert not missing


def test_a_table_that_nobody_knows_is_refused() -> None:
    from mkdocs.exceptions import PluginError

    tables = _tables()

    class Of:
        file = type("File", (), {"src_uri": "page.md"})

    with pytest.raises(PluginError, match=r"page\.md: no table 'failuers'"):
        tables.on_page_markdown("{{ failuers }}", page=Of)
    assert tables.on_page_markdown("say {{ failures }} there", page=Of) == "say {{ failures }} there"


def _tables() -> object:
    spec = importlib.util.spec_from_file_location("docs_tables", ROOT / "tools/docs_tables.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _assert_there(page: Page, anchors: Iterable[str]) -> None:
    assert not [anchor for anchor in anchors if anchor not in page.ids]
