"""Manifest for Kubernetes, which is not run here: checked by its schemas, and the agent's configuration in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from flafka.agent.config import load
from flafka.plugins import Components

MANIFEST = Path(__file__).parents[2] / "conf" / "kubernetes" / "flafka.yaml"


def documents() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(MANIFEST.read_text()))


def test_the_schemas_accept_it() -> None:
    schemas = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate: 100 MB of schemas")
    for document in documents():
        schemas.validate(document, schemas.latest_version(), strict=True)


def test_references_between_manifests_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = {document["kind"]: document for document in documents()}
    pod = kinds["StatefulSet"]["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    assert pod["spec"]["serviceAccountName"] == kinds["ServiceAccount"]["metadata"]["name"]
    assert kinds["RoleBinding"]["roleRef"]["name"] == kinds["Role"]["metadata"]["name"]
    assert kinds["StatefulSet"]["spec"]["serviceName"] == kinds["Service"]["metadata"]["name"]
    assert kinds["Service"]["spec"]["selector"] == pod["metadata"]["labels"]
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    claimed = {claim["metadata"]["name"] for claim in kinds["StatefulSet"]["spec"]["volumeClaimTemplates"]}
    assert mounted == claimed | {volume["name"] for volume in pod["spec"]["volumes"]}
    for variable in container["env"]:
        monkeypatch.setenv(variable["name"], variable.get("value", variable["name"].lower()))
    file = tmp_path / "agent.conf"
    file.write_text(kinds["ConfigMap"]["data"]["agent.conf"])
    spec, diagnostics = load(file, components=Components())
    assert spec is not None, diagnostics
    assert diagnostics == []
    ports = {port["port"] for port in kinds["Service"]["spec"]["ports"]}
    own = spec.options.spark_conf
    assert {int(own["spark.driver.port"]), int(own["spark.driver.blockManager.port"])} == ports
    assert own["spark.driver.host"].startswith("pod.flafka.")
