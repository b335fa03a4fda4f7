"""The cluster's contents, past HTTP, tokens and trouble: for tests and for controllers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.doubles.kubernetes.authority import Authority, account_user
from tests.doubles.kubernetes.kinds import (
    ACCOUNTS,
    BINDINGS,
    CORE,
    CRDS,
    KUEUE,
    ROLES,
    SCHEMALESS_RAY,
    SERVICES,
    Kind,
    crd_objects,
    from_crd,
)
from tests.doubles.kubernetes.objects import Objects, Writing
from tests.doubles.kubernetes.patches import MERGE
from tests.doubles.kubernetes.proxying import ServiceProxy
from tests.doubles.kubernetes.store import Item, Store


class Contents:
    """
    :param crds: folder of CRD files; ``None`` has Ray's kinds without schemas, see :attr:`schemaless`.
    :ivar token: may do everything; :meth:`account` makes others.
    :ivar logs: what pods have written, by namespace and pod.
    """

    def __init__(self, crds: Path | None = None) -> None:
        self.schemaless = crds is None
        self.store = Store()
        self.objects = Objects(self.store)
        self.authority = Authority(self.store)
        self.token = self.authority.issue("admin")
        self.proxy = ServiceProxy(self.store)
        self.logs: dict[tuple[str, str], str] = {}
        self._kinds: dict[tuple[str, str], Kind] = {}
        for kind in (*CORE, *KUEUE, *(SCHEMALESS_RAY if crds is None else ())):
            self._kinds[kind.key] = kind
        for crd in crd_objects(crds) if crds is not None else ():
            self.install(crd)
        for name in ("default", "kube-system"):
            self.put("namespaces", {"metadata": {"name": name}})

    def kind(self, plural: str) -> Kind:
        return next(kind for kind in self._kinds.values() if kind.plural == plural)

    def put(self, plural: str, body: Mapping[str, Any], namespace: str = "default") -> Item:
        """Create an object; *body* need not say its kind."""
        how = self._how(plural, namespace)
        named = {"apiVersion": how.kind.api_version(how.version), "kind": how.kind.kind, **body}
        item, _ = self.objects.create(how, named)
        return self.status(plural, item["metadata"]["name"], body["status"], namespace) if "status" in body else item

    def find(self, plural: str, name: str, namespace: str = "default") -> Item | None:
        kind = self.kind(plural)
        return self.store.find(kind, namespace if kind.namespaced else "", name)

    def items(self, plural: str, namespace: str | None = None) -> list[Item]:
        return self.store.items(self.kind(plural), namespace)

    def edit(self, plural: str, name: str, patch: Mapping[str, Any], namespace: str = "default") -> Item:
        """Merge *patch* into an object's main endpoint."""
        how = self._how(plural, namespace)
        return self.objects.patch(how, name, dict(patch), MERGE)[0]

    def status(self, plural: str, name: str, status: Mapping[str, Any], namespace: str = "default") -> Item:
        """Merge *status* into an object's status."""
        how = self._how(plural, namespace, "status")
        return self.objects.patch(how, name, {"status": dict(status)}, MERGE)[0]

    def remove(self, plural: str, name: str, namespace: str = "default", policy: str = "Background") -> None:
        self.objects.delete(self._how(plural, namespace), name, {"propagationPolicy": policy})

    def install(self, crd: Mapping[str, Any]) -> None:
        kind = from_crd(crd)
        self._kinds[kind.key] = kind
        self.store.put(CRDS, {**crd, "metadata": {**crd["metadata"], "uid": kind.qualified}})

    def uninstall(self, plural: str) -> None:
        """Take a kind away, with its objects."""
        kind = self.kind(plural)
        del self._kinds[kind.key]
        for item in self.store.items(kind):
            self.store.drop(kind, item)
        if crd := self.store.find(CRDS, "", kind.qualified):
            self.store.drop(CRDS, crd)

    def serve(self, service: str, ports: Mapping[int, str], namespace: str = "default", **metadata: Any) -> None:
        """A Service whose *ports* lead to base URLs on this machine, through the service proxy."""
        if self.find("services", service, namespace) is None:
            listed = [{"name": f"p{port}", "port": port, "protocol": "TCP"} for port in ports]
            body = {"metadata": {"name": service, **metadata}, "spec": {"ports": listed}}
            self.put(SERVICES.plural, body, namespace)
        for port, url in ports.items():
            self.proxy.backends[namespace, service, str(port)] = url

    def account(self, name: str, rules: Iterable[Mapping[str, Any]], namespace: str = "default") -> str:
        """A token for a service account that *rules* of a Role of its own let do things."""
        self.put(ACCOUNTS.plural, {"metadata": {"name": name}}, namespace)
        self.put(ROLES.plural, {"metadata": {"name": name}, "rules": list(rules)}, namespace)
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
        subject = {"kind": "ServiceAccount", "name": name, "namespace": namespace}
        binding = {"metadata": {"name": name}, "roleRef": reference, "subjects": [subject]}
        self.put(BINDINGS.plural, binding, namespace)
        return self.authority.issue(account_user(namespace, name))

    def _how(self, plural: str, namespace: str, subresource: str = "") -> Writing:
        kind = self.kind(plural)
        return Writing(kind, kind.versions[0], namespace if kind.namespaced else "", subresource, manager="controller")
