"""The files for Slurm and Kubernetes, as far as a machine without either can say: they are well-formed, every
key and option exists, names that must agree do, and exit codes lead where they should."""

from __future__ import annotations

import copy
import json
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from durable_core.cli.launch import LAUNCH_EXIT_CODES
from durable_core.launch.agent import flags

EXAMPLES = Path(__file__).parents[2] / "examples"
SCHEMAS = Path(__file__).parent / "schemas"
SBATCH = EXAMPLES / "slurm" / "train.sbatch"


def schema(name: str) -> Any:
    return json.loads((SCHEMAS / f"{name}.json").read_text())


# --- Slurm ----------------------------------------------------------------------------------------


def directives() -> dict[str, str | None]:
    """What the ``#SBATCH`` lines ask for; sbatch reads them up to the first command."""
    found: dict[str, str | None] = {}
    begun = False
    for line in SBATCH.read_text().splitlines():
        begun = begun or not (line.startswith("#") or not line.strip())
        if line.startswith("#SBATCH"):
            assert not begun, f"after the first command, where sbatch does not read it: {line}"
            (word,) = shlex.split(line.removeprefix("#SBATCH"), comments=True)
            name, given, value = word.removeprefix("--").partition("=")
            assert word.startswith("--") and name not in found
            found[name] = value if given else None
    return found


def check_options(options: dict[str, str | None], known: dict[str, str], values: dict[str, str]) -> None:
    for name, value in options.items():
        assert name in known, f"--{name} is unknown"
        assert known[name] == "optional" or (known[name] == "yes") == (value is not None), name
        if name in values:
            assert re.fullmatch(values[name], value or ""), f"--{name}={value}"


def test_every_option_of_the_batch_job_exists() -> None:
    slurm, options = schema("slurm-24.11"), directives()
    check_options(options, slurm["sbatch"], slurm["values"])
    assert "requeue" in options and options["open-mode"] == "append"
    with pytest.raises(AssertionError, match="unknown"):
        check_options({"requeu": None}, slurm["sbatch"], {})


def test_launchers_get_their_signal_in_time_to_drain() -> None:
    sent, seconds = str(directives()["signal"]).split("@")
    assert sent == "TERM", "with B: the shell would get it, and srun kill the launchers"
    assert float(seconds) > float(re.findall(r"--stop-grace (\d+)", SBATCH.read_text())[-1])


FAKE = {
    "scontrol": 'if [ "$1" = show ]; then printf "node1\\nnode2\\n"; else echo "$@" >>"$SAID/requeued"; fi',
    "srun": 'printf "%s\\n" "$@" >"$SAID/srun"; exit "$CODE"',
}


@pytest.fixture
def submit(tmp_path: Path) -> Callable[..., tuple[int, list[str], bool]]:
    """Run the batch script with what stands in for Slurm: (exit code, what srun was given, requeued)."""
    for name, body in FAKE.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)

    def run(code: int, *arguments: str, **environment: str) -> tuple[int, list[str], bool]:
        said = tmp_path / f"said{len(list(tmp_path.iterdir()))}"
        said.mkdir()
        done = subprocess.run(
            ["bash", str(SBATCH), *arguments],
            env={
                "PATH": f"{tmp_path}:/usr/bin:/bin",
                "SAID": str(said),
                "CODE": str(code),
                "SLURM_JOB_ID": "4711",
                "SLURM_JOB_NODELIST": "node[1-2]",
                "SLURM_JOB_NUM_NODES": "2",
                **environment,
            },
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        given = (said / "srun").read_text().splitlines() if (said / "srun").exists() else []
        assert "unbound" not in done.stderr and "not found" not in done.stderr, done.stderr
        return done.returncode, given, (said / "requeued").exists()

    return run


@pytest.mark.parametrize("code", [0, 1, *sorted(LAUNCH_EXIT_CODES), 137, 143])
def test_a_drained_job_goes_back_into_the_queue_and_a_finished_one_does_not(
    submit: Callable[..., tuple[int, list[str], bool]], code: int
) -> None:
    ended, _, requeued = submit(code, "train.py")
    assert (ended, requeued) == (code, code in (75, 137, 143))


def test_requeues_are_bounded(submit: Callable[..., tuple[int, list[str], bool]]) -> None:
    assert submit(75, "train.py", SLURM_RESTART_COUNT="49")[2]
    assert not submit(75, "train.py", SLURM_RESTART_COUNT="50")[2]


def test_srun_starts_a_launcher_that_understands_its_flags(
    submit: Callable[..., tuple[int, list[str], bool]],
) -> None:
    _, given, _ = submit(0, "train.py", "--name", "two words", SLURM_RESTART_COUNT="3")
    begin = given.index("durable")
    options = dict(word.removeprefix("--").split("=") for word in given[:begin])
    slurm = schema("slurm-24.11")
    check_options(dict(options), slurm["srun"], {})
    assert given[begin + 1] == "launch"
    asked = parsed(given[begin + 2 :])
    assert asked.script == ("train.py", "--name", "two words")
    assert (asked.config.min_nodes, asked.config.rdzv_endpoint, asked.config.run_id) == (
        2,
        "node1:24711",
        "4711-3",
    )


def test_a_job_without_a_script_says_how_it_is_used(
    submit: Callable[..., tuple[int, list[str], bool]],
) -> None:
    assert submit(0) == (2, [], False)


def parsed(arguments: list[str]) -> flags.Flags:
    """As ``durable launch`` reads them, on a machine that may have no device."""
    return flags.parse(
        [word.replace("gpu", "1") if "gpu" in word else word for word in arguments], lambda: "id"
    )


# --- Kubernetes -----------------------------------------------------------------------------------


@pytest.fixture
def jobset() -> Any:
    return yaml.safe_load((EXAMPLES / "kubernetes" / "jobset.yaml").read_text())


@pytest.fixture
def queues() -> dict[str, Any]:
    documents = yaml.safe_load_all((EXAMPLES / "kubernetes" / "kueue.yaml").read_text())
    return {document["kind"]: document for document in documents}


def job(jobset: Any) -> Any:
    (replicated,) = jobset["spec"]["replicatedJobs"]
    return replicated["template"]["spec"]


def test_the_jobset_has_only_keys_that_exist(jobset: Any) -> None:
    jsonschema.Draft202012Validator.check_schema(schema("jobset-v1alpha2"))
    jsonschema.validate(jobset, schema("jobset-v1alpha2"))


def test_the_queues_have_only_keys_that_exist(queues: dict[str, Any]) -> None:
    assert set(queues) == {"ResourceFlavor", "ClusterQueue", "LocalQueue"}
    for document in queues.values():
        jsonschema.validate(document, schema("kueue-v1beta2"))


BREAKAGES: dict[str, Callable[[Any], Any]] = {
    "a misspelt key": lambda j: j["spec"]["failurePolicy"].update(maxRestart=3),
    "a policy that is none": lambda j: job(j)["template"]["spec"].update(restartPolicy="OnFailure"),
    "a rule with two conditions": lambda j: job(j)["podFailurePolicy"]["rules"][0].update(
        onExitCodes={"operator": "In", "values": [1]}
    ),
    "a number in words": lambda j: job(j).update(backoffLimit="20"),
    "a volume without a source": lambda j: job(j)["template"]["spec"]["volumes"][0].pop(
        "persistentVolumeClaim"
    ),
}


@pytest.mark.parametrize("name", BREAKAGES)
def test_the_schema_refuses(name: str, jobset: Any) -> None:
    broken = copy.deepcopy(jobset)
    BREAKAGES[name](broken)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken, schema("jobset-v1alpha2"))


def test_names_in_the_jobset_agree(jobset: Any, queues: dict[str, Any]) -> None:
    pod = job(jobset)["template"]["spec"]
    (container,) = pod["containers"]
    assert {mount["name"] for mount in container["volumeMounts"]} == {v["name"] for v in pod["volumes"]}
    exits = [
        rule["onExitCodes"] for rule in job(jobset)["podFailurePolicy"]["rules"] if "onExitCodes" in rule
    ]
    assert {each["containerName"] for each in exits} == {container["name"]}

    queue, quota = queues["LocalQueue"], queues["ClusterQueue"]
    assert jobset["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == queue["metadata"]["name"]
    assert jobset["metadata"]["namespace"] == queue["metadata"]["namespace"]
    assert queue["spec"]["clusterQueue"] == quota["metadata"]["name"]
    (group,) = quota["spec"]["resourceGroups"]
    (flavor,) = group["flavors"]
    assert flavor["name"] == queues["ResourceFlavor"]["metadata"]["name"]
    assert [each["name"] for each in flavor["resources"]] == group["coveredResources"]
    asked = {**container["resources"]["requests"], **container["resources"]["limits"]}
    assert set(asked) <= set(group["coveredResources"]), (
        "Kueue admits nothing that asks for what it has no quota of"
    )


def test_pods_start_a_launcher_of_the_whole_group(jobset: Any) -> None:
    pod = job(jobset)["template"]["spec"]
    (container,) = pod["containers"]
    assert container["command"] == ["durable", "launch"]
    asked = parsed(container["args"])
    nodes = job(jobset)["completions"]
    assert asked.config.min_nodes == asked.config.max_nodes == nodes == job(jobset)["parallelism"]
    (replicated,) = jobset["spec"]["replicatedJobs"]
    name = jobset["metadata"]["name"]
    assert asked.config.rdzv_endpoint == f"{name}-{replicated['name']}-0-0.{name}:29500"
    assert pod["terminationGracePeriodSeconds"] > asked.stop_grace_s
    assert asked.script[0] == "train.py"


def test_every_exit_code_has_its_rule(jobset: Any) -> None:
    rules = job(jobset)["podFailurePolicy"]["rules"]
    action = {
        code: rule["action"]
        for rule in rules
        if "onExitCodes" in rule
        for code in rule["onExitCodes"]["values"]
    }
    again = {0: "done", 1: "counted", 75: "Ignore"}
    assert {code: action.get(code, again.get(code)) for code in LAUNCH_EXIT_CODES} == {
        code: again.get(code, "FailJob") for code in LAUNCH_EXIT_CODES
    }
    assert action[75] == "Ignore" and rules[0]["onPodConditions"][0]["type"] == "DisruptionTarget"
    assert all(rule["onExitCodes"]["values"] == sorted(rule["onExitCodes"]["values"]) for rule in rules[1:])
