"""The examples for clusters: they parse, have what is required of them, and use options that there are."""

import re
import shlex
import subprocess
from typing import Any

import jsonschema
import pytest
import typer.main
import yaml
from ray.scripts.scripts import start

from rlplan_cli import application
from tests.house.tree import ROOT

FOLDER = ROOT / "examples" / "clusters"
TEXT, COUNT = {"type": "string", "minLength": 1}, {"type": "integer", "minimum": 0}


def fields(required, optional=None):
    """Return the schema of an object that has these fields and no others."""
    return {
        "type": "object",
        "required": list(required),
        "properties": {**required, **(optional or {})},
        "additionalProperties": False,
    }


def by_name(value):
    return {"type": "object", "additionalProperties": value}


# Of a pod, what is used here (core/v1 of Kubernetes).
CONTAINER = fields(
    {"name": TEXT, "image": TEXT},
    {
        "resources": fields({"limits": by_name(TEXT), "requests": by_name(TEXT)}),
        "volumeMounts": {"type": "array", "items": fields({"name": TEXT, "mountPath": TEXT})},
    },
)
VOLUME = fields(
    {"name": TEXT},
    {
        "persistentVolumeClaim": fields({"claimName": TEXT}),
        "emptyDir": fields({}, {"medium": TEXT, "sizeLimit": TEXT}),
    },
)
PODS = {"type": "array", "minItems": 1, "items": CONTAINER}
TEMPLATE = fields(
    {"spec": fields({"containers": PODS}, {"volumes": {"type": "array", "items": VOLUME}})}
)
# As `RayJobSpec`, `RayClusterSpec` and its groups have them in ray.io/v1 of KubeRay, those that were required
# in its first releases included.
RAY_JOB = fields(
    {
        "apiVersion": {"const": "ray.io/v1"},
        "kind": {"const": "RayJob"},
        "metadata": fields({"name": TEXT}),
        "spec": fields(
            {
                "entrypoint": TEXT,
                "rayClusterSpec": fields(
                    {
                        "rayVersion": TEXT,
                        "headGroupSpec": fields(
                            {"rayStartParams": by_name(TEXT), "template": TEMPLATE}
                        ),
                        "workerGroupSpecs": {
                            "type": "array",
                            "items": fields(
                                {
                                    "groupName": TEXT,
                                    "minReplicas": COUNT,
                                    "maxReplicas": COUNT,
                                    "rayStartParams": by_name(TEXT),
                                    "template": TEMPLATE,
                                },
                                {"replicas": COUNT},
                            ),
                        },
                    },
                    {"authOptions": fields({"mode": {"enum": ["disabled", "token"]}})},
                ),
            },
            {"shutdownAfterJobFinishes": {"type": "boolean"}},
        ),
    }
)
# SkyPilot's YAML: all fields are optional, others are refused.
SKY_TASK = fields(
    {"resources": fields({"accelerators": {"type": "string", "pattern": r"^[\w-]+:\d+$"}})},
    {
        "name": TEXT,
        "num_nodes": COUNT,
        "workdir": TEXT,
        "file_mounts": by_name(fields({"name": TEXT, "mode": {"enum": ["MOUNT", "COPY"]}})),
        "secrets": by_name({"type": ["string", "null"]}),
        "setup": TEXT,
        "run": TEXT,
    },
)


@pytest.mark.parametrize(("name", "schema"), [("kuberay", RAY_JOB), ("skypilot", SKY_TASK)])
def test_an_example_has_what_is_required_and_nothing_unknown(name, schema):
    jsonschema.validate(yaml.safe_load((FOLDER / f"{name}.yaml").read_text()), schema)


def test_volumes_that_pods_mount_are_there():
    cluster = yaml.safe_load((FOLDER / "kuberay.yaml").read_text())["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        mounted = {
            mount["name"] for each in pod["containers"] for mount in each.get("volumeMounts", ())
        }
        assert mounted == {each["name"] for each in pod["volumes"]}


def scripts():
    """Yield the shell parts of the examples, as one line a command."""
    sky = yaml.safe_load((FOLDER / "skypilot.yaml").read_text())
    kube = yaml.safe_load((FOLDER / "kuberay.yaml").read_text())
    yield "slurm", (FOLDER / "slurm.sh").read_text()
    yield "skypilot setup", sky["setup"]
    yield "skypilot run", sky["run"]
    yield "kuberay", kube["spec"]["entrypoint"]


@pytest.mark.parametrize(("name", "text"), [*scripts()], ids=[name for name, _ in scripts()])
def test_shell_parts_parse(name, text):
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0


def options_of(text, command):
    joined = text.replace("\\\n", " ")
    found = re.findall(rf"(?:^|\s){command} ([^;&\n]*)", joined)
    return {
        word.partition("=")[0]
        for line in found
        for word in shlex.split(line)
        if word.startswith("--")
    }


def test_options_of_the_examples_are_those_of_their_commands():
    application._register("execute")
    group: Any = typer.main.get_command(application.app)
    known = {
        "rlplan execute": {name for each in group.commands["execute"].params for name in each.opts},
        "ray start": {name for each in start.params for name in (*each.opts, *each.secondary_opts)},
    }
    used = {command: set() for command in known}
    for _, text in scripts():
        for command in known:
            used[command] |= options_of(text, command)
    assert {"--address", "--node-wait", "--checkpoint-every"} <= used["rlplan execute"]
    assert {"--head", "--port", "--address"} <= used["ray start"]
    for command, options in used.items():
        assert options <= known[command], command
