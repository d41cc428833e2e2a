"""Does with every kind of kruise-rs, in every version in which it is served, what Python programs do: apply, apply again,
conflicts of field managers, patches, scale, watch, delete. A line says what was checked; it exits with 1 when a check fails,
after the other kinds.

    clients.py SAMPLES NAMESPACE [--kinds A,B] [--gates G]

The lists of versions and of kinds with /scale come from the API server.
"""

import argparse
import copy
import os
import re
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

import yaml
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException
from kubernetes.dynamic import DynamicClient
from kubernetes.dynamic.exceptions import DynamicApiError

GROUPS = ["apps.kruise.io", "policy.kruise.io", "kruise.rs"]
# The first applies a whole object, the second one field of it.
FIRST, SECOND = "clients-first", "clients-second"
# Long enough for anything that a check waits for, in seconds.
PATIENCE = 60


class Failed(Exception):
    """A check that does not hold."""


def ensure(holds, message):
    if not holds:
        raise Failed(message)


def parts(pointer):
    return [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]


def index(container, part):
    return int(part) if isinstance(container, list) else part


def at(value, pointer):
    """Reads by JSON pointer; what is not there reads as None."""
    for part in parts(pointer):
        try:
            value = value[index(value, part)]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def put(value, pointer, new):
    """Writes by JSON pointer; objects on the way are made."""
    *way, last = parts(pointer)
    for part in way:
        value = value[index(value, part)] if isinstance(value, list) else value.setdefault(part, {})
    value[index(value, last)] = new


def another(value):
    """A value of the same form that differs."""
    if isinstance(value, int):
        return value + 1
    percent = re.fullmatch(r"(\d+)%", value)
    return f"{int(percent[1]) + 1}%" if percent else value + "x"


class Checker:
    """One kind in one version."""

    def __init__(self, cluster, resource, sample, lines):
        self.api, self.custom, self.namespace = cluster
        self.resource, self.sample, self.lines = resource, sample, lines
        name = f"python-{resource.api_version}"
        if not resource.namespaced:
            name = f"{self.namespace}-{name}"
        self.name = name
        self.object = copy.deepcopy(sample["object"])
        self.object["apiVersion"] = resource.group_version
        put(self.object, "/metadata/name", name)
        self.change = sample["change"]

    def ok(self, text):
        self.lines.append(f"ok {self.resource.kind} {self.resource.api_version}: {text}")

    @property
    def place(self):
        return {"namespace": self.namespace} if self.resource.namespaced else {}

    def apply(self, body, manager, force=False):
        return self.resource.server_side_apply(
            body=body, name=self.name, field_manager=manager, force_conflicts=force, **self.place
        ).to_dict()

    def get(self):
        return self.resource.get(name=self.name, **self.place).to_dict()

    def refusal(self, code, call):
        """What the API server says where it refuses a call."""
        try:
            made = call()
        except (ApiException, DynamicApiError) as error:
            body = error.body.decode() if isinstance(error.body, bytes) else str(error.body)
            ensure(error.status == code, f"{error.status} instead of {code}: {body}")
            return body
        raise Failed(f"not refused with {code}: {made}")

    def all(self, gates):
        gate = self.sample.get("gate")
        if gate and gate not in gates:
            said = self.refusal(403, lambda: self.apply(self.object, FIRST))
            ensure(gate in said, said)
            self.ok(f"refused while {gate} is off")
            return
        made = self.applied()
        self.conflict()
        self.patched()
        if "scale" in self.resource.subresources:
            self.scaled()
        self.removed()
        self.deleted(made)

    def applied(self):
        """Applies, and once more without a change."""
        body = copy.deepcopy(self.object)
        put(body, self.change["path"], self.change["value"])
        made = self.apply(body, FIRST)
        again = self.apply(body, FIRST)
        ensure(again["metadata"]["uid"] == made["metadata"]["uid"], "another object")
        ensure(
            again["metadata"]["generation"] == made["metadata"]["generation"] and again["spec"] == made["spec"],
            f"applied again, {made} is {again}",
        )
        ensure(self.owned(again, FIRST) == self.owned(made, FIRST), f"owned before: {made}, after: {again}")
        self.ok("applied, and again without a change")
        return made

    @staticmethod
    def owned(object_, manager):
        return [
            entry
            for entry in object_["metadata"]["managedFields"]
            if entry["manager"] == manager and entry["operation"] == "Apply"
        ]

    def conflict(self):
        """Another manager is refused with the name of the first, takes the field by force, and is named itself then."""
        path, value = self.change["path"], self.change["value"]
        first = copy.deepcopy(self.object)
        put(first, path, value)
        # The field alone, with the whole list where it is in one.
        whole = re.split(r"/\d+", path)[0]
        taken = copy.deepcopy(first)
        put(taken, path, another(value))
        second = {key: copy.deepcopy(self.object[key]) for key in ("apiVersion", "kind", "metadata")}
        put(second, whole, at(taken, whole))
        said = self.refusal(409, lambda: self.apply(second, SECOND))
        field = "." + ".".join(parts(whole))
        ensure(f'conflict with \\"{FIRST}\\"' in said and field in said, f"{field}: {said}")
        if path.startswith("/metadata") or isinstance(value, int) or value.endswith("%"):
            forced = self.apply(second, SECOND, force=True)
            ensure(at(forced, path) == another(value), f"forced: {forced}")
            said = self.refusal(409, lambda: self.apply(first, FIRST))
            ensure(f'conflict with \\"{SECOND}\\"' in said and field in said, f"{field}: {said}")
            back = self.apply(first, FIRST, force=True)
            ensure(at(back, path) == value, f"back again: {back}")
        self.ok(f"a conflict at {field} names the manager")

    def patched(self):
        """Merge and JSON patches; a strategic merge patch is refused."""
        path, value = self.change["path"], self.change["value"]
        patched = self.custom_patch({"metadata": {"labels": {"kruise.rs.test/touched": "merge"}}})
        ensure(at(patched, path) == value, f"patched: {patched}")
        ensure(at(patched, "/metadata/labels/kruise.rs.test~1touched") == "merge", f"patched: {patched}")
        operations = [
            {"op": "test", "path": path, "value": value},
            {"op": "remove", "path": "/metadata/labels/kruise.rs.test~1touched"},
        ]
        patched = self.resource.patch(
            body=operations, name=self.name, content_type="application/json-patch+json", **self.place
        ).to_dict()
        ensure(at(patched, "/metadata/labels/kruise.rs.test~1touched") is None, f"patched: {patched}")
        strategic = "application/strategic-merge-patch+json"
        self.refusal(
            415,
            lambda: self.resource.patch(
                body={"metadata": {"labels": {"a": "b"}}}, name=self.name, content_type=strategic, **self.place
            ),
        )
        self.ok("patched by a merge and by a JSON patch; a strategic merge patch is refused")

    def custom_patch(self, body):
        """By the API that has no discovery."""
        way = (self.resource.group, self.resource.api_version)
        if self.resource.namespaced:
            return self.custom.patch_namespaced_custom_object(
                *way, self.namespace, self.resource.name, self.name, body
            )
        return self.custom.patch_cluster_custom_object(*way, self.resource.name, self.name, body)

    def scaled(self):
        way = (self.resource.group, self.resource.api_version, self.namespace, self.resource.name, self.name)
        scale = self.custom.patch_namespaced_custom_object_scale(*way, {"spec": {"replicas": 1}})
        ensure(scale["kind"] == "Scale" and scale["spec"]["replicas"] == 1, f"{scale}")
        scale["spec"]["replicas"] = 0
        scale = self.custom.replace_namespaced_custom_object_scale(*way, scale)
        ensure(at(scale, "/spec/replicas") is None or scale["spec"]["replicas"] == 0, f"{scale}")
        ensure(self.get()["spec"]["replicas"] == 0, "the replicas of the object are others than those of its scale")
        self.ok("scaled")

    def removed(self):
        """A field that its only manager applies no more goes, or goes back to its default."""
        path, value = self.change["path"], self.change["value"]
        applied = self.apply(self.object, FIRST)
        ensure(at(applied, path) != value, f"{path} is still there: {applied}")
        self.ok(f"{path} goes when it is applied no more")

    def deleted(self, made):
        """Deletes; a watch from the beginning shows every step."""
        self.resource.delete(name=self.name, body={}, **self.place)
        seen = []
        events = self.api.watch(
            self.resource,
            name=self.name,
            resource_version=made["metadata"]["resourceVersion"],
            timeout=PATIENCE,
            **self.place,
        )
        for event in events:
            ensure(event["raw_object"]["metadata"]["uid"] == made["metadata"]["uid"], "another object")
            seen.append(event["type"])
            if event["type"] == "DELETED":
                break
        ensure(seen[-1:] == ["DELETED"] and "MODIFIED" in seen, f"a watch shows {seen}")
        self.refusal(404, self.get)
        self.ok("deleted, and seen by a watch")


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("samples")
    arguments.add_argument("namespace")
    arguments.add_argument("--kinds", default="")
    arguments.add_argument("--gates", default="")
    arguments = arguments.parse_args()
    with open(arguments.samples, encoding="utf-8") as file:
        text = file.read().replace("NAMESPACE", arguments.namespace)
    samples = {sample["object"]["kind"]: sample for sample in yaml.safe_load(text)}
    only = [kind for kind in arguments.kinds.split(",") if kind] or list(samples)

    config.load_kube_config()
    with tempfile.TemporaryDirectory() as folder:
        api = DynamicClient(client.ApiClient(), cache_file=os.path.join(folder, "discovery.json"))
        cluster = (api, client.CustomObjectsApi(), arguments.namespace)
        served = {}
        for group in GROUPS:
            for resource in api.resources.search(group=group):
                if getattr(resource, "kind", "") in samples and not resource.kind.endswith("List"):
                    served.setdefault(resource.kind, {})[resource.api_version] = resource
        missing = set(samples) - set(served)
        ensure(not missing, f"not served: {missing}")

        def one(kind):
            lines = []
            try:
                for _, resource in sorted(served[kind].items()):
                    Checker(cluster, resource, samples[kind], lines).all(arguments.gates.split(","))
            except Exception as error:  # whatever it is, the other kinds go on
                return lines, f"FAILED {kind} {lines[-1:]}: {type(error).__name__} {error}"
            return lines, None

        with ThreadPoolExecutor(6) as threads:
            reports = list(threads.map(one, only))
    failed = False
    for lines, error in reports:
        print(*lines, sep="\n")
        if error:
            failed = True
            print(error[:4000], file=sys.stderr)
    return failed


if __name__ == "__main__":
    sys.exit(main())
