"""Options: one frozen object, whatever they come from; and what is wrong is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from accelerate_durable.options import PREFIX, DurableOptions
from durable_core.errors import UnsupportedError, UsageError
from durable_core.session.places import Disk, Memory, Peer, Tiers
from durable_core.spec import Goal
from durable_core.types import Promise, Traits

NESTED = {
    "tiers": {
        "memory": {"every_n_steps": 2},
        "peer": {"addresses": ["host:7946"]},
        "disk": {"path": "/nvme/exp1", "every": 3, "traits": {"survives": ["process"]}},
        "goals": [{"domain": "host", "rpo_steps": 30}],
    },
    "retention": {"keep_last": 2},
    "integrity": {"on_numeric": "stop", "spikes": None},
}


def gathered(**variables: str) -> DurableOptions:
    return DurableOptions.gather({f"{PREFIX}{name}": text for name, text in variables.items()})


def test_what_is_nested_becomes_the_cores_own_objects() -> None:
    options = DurableOptions.of(NESTED)
    assert options.tiers == Tiers(
        memory=Memory(every_n_steps=2),
        peer=Peer(("host:7946",)),
        disk=Disk("/nvme/exp1", every=3, traits=Traits(frozenset({"process"}))),
        goals=(Goal("host", rpo_steps=30),),
    )
    settings = options.settings()
    assert settings.retention.keep_last == 2
    assert (settings.integrity.on_numeric, settings.integrity.spikes) == ("stop", None)


def test_what_is_not_said_is_the_cores_default() -> None:
    given = DurableOptions().session()
    assert given["every_n_steps"] == "auto"
    assert given["promise"] is None  # the run is bitwise where it can be, and nobody insists
    assert DurableOptions().settings().promise is Promise.BITWISE
    assert DurableOptions.of(None) == DurableOptions.of({}) == DurableOptions()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"every_n_step": 3}, r"c.yaml: durable_config.every_n_step: .*did you mean every_n_steps\?"),
        ({"spec": {}}, r"durable_config.spec: no such field.*known: root, resume"),
        ({"tiers": {"memory": {"every_n_stes": 1}}}, r"tiers.memory.every_n_stes: .*every_n_steps\?"),
        ({"tiers": {"memory": {"every_n_steps": 0}}}, r"durable_config: Memory.every_n_steps=0"),
        ({"tiers": "memory"}, "durable_config.tiers: must be an object, not str"),
        ({"root": 1}, "durable_config.root: must be str.*not int"),
        ({"root": ""}, "root=''"),
        ({"run_key": "A b"}, "run_key='A b'"),
        ({"resume": "x"}, "durable_config.resume: must be one of 'auto', 'never', 'must', 'fork', not 'x'"),
        ({"promise": "x"}, "promise='x' .one of 'bitwise'"),
        ({"every_n_steps": True}, "durable_config.every_n_steps: must be int or str, not bool"),
        ({"every_n_steps": "often"}, "every_n_steps='often'"),
        ({"every_seconds": 0}, "every_seconds=0"),
        ({"max_steps": 0}, "max_steps=0"),
        ({"train_loader": -1}, "train_loader=-1"),
        ({"takeover": "yes"}, "durable_config.takeover: must be bool, not str"),
        ({"retention": {"keep_last": 0}}, "retention.keep_last must be at least 1"),
        ([1], "durable_config: must be an object, not list"),
    ],
    ids=lambda value: str(value)[:30] if not isinstance(value, str) else "",
)
def test_a_file_that_is_wrong_is_named_and_so_is_the_key(given: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        DurableOptions.of(given, "c.yaml", "durable_config")
    assert caught.value.message.startswith("c.yaml: ")


def test_computing_gradients_twice_is_not_for_a_script_that_computes_them_itself() -> None:
    with pytest.raises(UnsupportedError, match="replicas_every"):
        DurableOptions.of({"integrity": {"recompute_every": 3}})


@pytest.mark.parametrize(
    ("variable", "text", "value"),
    [
        ("ROOT", "12", "12"),
        ("ROOT", "s3://bucket/run/", "s3://bucket/run"),
        ("EVERY_N_STEPS", "3", 3),
        ("EVERY_N_STEPS", "auto", "auto"),
        ("EVERY_SECONDS", "2.5", 2.5),
        ("TAKEOVER", "1", True),
        ("TAKEOVER", "No", False),
        ("MAX_STEPS", "7", 7),
        ("RUN_KEY", "7", "7"),
        ("PROMISE", "exact-order", "exact-order"),
        ("TIERS", '{"memory": {}}', Tiers(memory=Memory())),
        ("BACKLOG", "", "skip"),
    ],
)
def test_variables_have_the_types_of_options(variable: str, text: str, value: Any) -> None:
    assert getattr(gathered(**{variable: text}), variable.lower()) == value


@pytest.mark.parametrize(
    ("variable", "text", "said"),
    [
        (
            "EVERY_N_STEP",
            "3",
            r"ACCELERATE_DURABLE_EVERY_N_STEP: .*did you mean ACCELERATE_DURABLE_EVERY_N_STEPS\?",
        ),
        ("TAKEOVER", "maybe", "ACCELERATE_DURABLE_TAKEOVER='maybe': takeover: must be bool"),
        ("MAX_STEPS", "x", "ACCELERATE_DURABLE_MAX_STEPS='x': max_steps: must be int"),
        ("MAX_STEPS", "0", "ACCELERATE_DURABLE_MAX_STEPS='0': max_steps=0"),
        ("TIERS", "memory", "ACCELERATE_DURABLE_TIERS='memory': tiers: must be an object"),
        ("FILE", "nowhere.yaml", "nowhere.yaml: No such file"),
    ],
    ids=["unknown", "bool", "int", "illegal", "nested", "file"],
)
def test_a_variable_that_is_wrong_is_named(variable: str, text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        gathered(**{variable: text})


def test_the_file_then_the_environment_then_arguments(tmp_path: Path) -> None:
    file = tmp_path / "durable.yaml"
    file.write_text("root: a\nevery_n_steps: 1\nmax_steps: 1\nrun_key: a\n")
    environ = {
        f"{PREFIX}FILE": str(file),
        f"{PREFIX}EVERY_N_STEPS": "2",
        f"{PREFIX}MAX_STEPS": "2",
        "OTHER": "x",
    }
    options = DurableOptions.gather(environ, max_steps=3)
    assert (options.root, options.every_n_steps, options.max_steps) == ("a", 2, 3)
    assert options.home() == "a/a"


def test_a_block_goes_through_the_environment_unchanged() -> None:
    block = {
        **NESTED,
        "root": "12",
        "every_n_steps": 3,
        "every_seconds": 0.5,
        "takeover": True,
        "max_steps": None,
    }
    assert DurableOptions.gather(DurableOptions.variables(block)) == DurableOptions.of(block)


def test_where_a_run_lives() -> None:
    assert DurableOptions(root="/a/").home("/p") == "/a"
    assert DurableOptions(run_key="x").home("/p") == "/p/durable/x"
    assert DurableOptions(root=Path("/a"), run_key="x").home() == "/a/x"
    with pytest.raises(UsageError, match="ACCELERATE_DURABLE_ROOT"):
        DurableOptions().home()
