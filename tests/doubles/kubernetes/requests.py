"""From a request to the objects and back: what each verb answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import yaml
from aiohttp import web

from tests.doubles.kubernetes import metadata
from tests.doubles.kubernetes.apply import check as check_apply
from tests.doubles.kubernetes.authority import Authority, Wish, account_user
from tests.doubles.kubernetes.kinds import ACCOUNTS, PODS, Kind
from tests.doubles.kubernetes.objects import Objects, Writing
from tests.doubles.kubernetes.paging import page
from tests.doubles.kubernetes.patches import APPLY, STRATEGIC
from tests.doubles.kubernetes.paths import Target
from tests.doubles.kubernetes.refusal import Refusal, bad_request, not_found
from tests.doubles.kubernetes.store import Item

BODY_LIMIT = 3 * 1024 * 1024


@dataclass
class Requests:
    """
    :ivar logs: what pods have written, by namespace and pod.
    """

    objects: Objects
    authority: Authority
    logs: dict[tuple[str, str], str]

    async def answer(self, request: web.Request, target: Target, kind: Kind, user: str) -> web.Response:
        body = await read_body(request)
        if target.subresource not in ({"", "status"} if kind.has_status else {""}):
            return self._special(target, kind, body)
        how = _writing(target, kind, request, user)
        match target.verb:
            case "list":
                return self._list(target, kind, request.query)
            case "get":
                return self._shown(how, self.objects.get(kind, target.namespace, target.name))
            case "create":
                return self._shown(how, *self.objects.create(how, body), code=201)
            case "update":
                return self._shown(how, *self.objects.replace(how, target.name, body))
            case "patch":
                return self._patch(how, target.name, body, request.content_type)
            case "delete":
                return self._delete(how, target.name, _delete_options(request, body))
            case "deletecollection":
                return self._delete_all(how, request, body)
        raise Refusal(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")

    def selector(self, target: Target, kind: Kind, query: Mapping[str, str]) -> Callable[[Item], bool]:
        labels = metadata.label_test(query.get("labelSelector", ""))
        fields = metadata.field_test(kind, query.get("fieldSelector", ""))
        namespace, name = target.namespace, target.name

        def wanted(item: Item) -> bool:
            meta = item["metadata"]
            here = (not namespace or meta.get("namespace") == namespace) and (not name or meta["name"] == name)
            return here and labels(item) and fields(item)

        return wanted

    def may(self, user: str, body: Any) -> web.Response:
        """SelfSubjectAccessReview."""
        asked = (body.get("spec") or {}).get("resourceAttributes") or {}
        resource, _, below = asked.get("resource", "").partition("/")
        wish = Wish(
            verb=asked.get("verb", ""),
            group=asked.get("group", ""),
            resource=resource,
            subresource=asked.get("subresource", "") or below,
            namespace=asked.get("namespace", ""),
            name=asked.get("name", ""),
        )
        allowed = self.authority.allows(user, wish)
        return web.json_response({**body, "metadata": {}, "status": {"allowed": allowed}}, status=201)

    def _special(self, target: Target, kind: Kind, body: Any) -> web.Response:
        """Subresources that only one kind has."""
        self.objects.get(kind, target.namespace, target.name)
        if kind is ACCOUNTS and target.subresource == "token":
            return self._issue(target, body)
        if kind is PODS and target.subresource == "log":
            return web.Response(text=self.logs.get((target.namespace, target.name), ""))
        raise Refusal(404, "NotFound", "the server could not find the requested resource")

    def _list(self, target: Target, kind: Kind, query: Mapping[str, str]) -> web.Response:
        found = page(self.objects.store, kind, query, self.selector(target, kind, query))
        shown = {"apiVersion": kind.api_version(target.version), "kind": kind.kind}
        items = [{**item, **shown} for item in found["items"]]
        if not kind.is_custom:
            items = [{name: part for name, part in item.items() if name not in shown} for item in items]
        return web.json_response({**shown, "kind": f"{kind.kind}List", "metadata": found["metadata"], "items": items})

    def _patch(self, how: Writing, name: str, body: Any, content_type: str) -> web.Response:
        if content_type == APPLY and self.objects.store.find(how.kind, how.namespace, name) is None:
            check_apply(how.kind, how.manager, body)
            meta = {**(body.get("metadata") or {}), "name": name}
            return self._shown(how, *self.objects.create(how, {**body, "metadata": meta}), code=201)
        return self._shown(how, *self.objects.patch(how, name, body, content_type or STRATEGIC))

    def _delete(self, how: Writing, name: str, options: dict[str, Any]) -> web.Response:
        uid = self.objects.get(how.kind, how.namespace, name)["metadata"]["uid"]
        marked = self.objects.delete(how, name, options)
        if marked is not None:
            return self._shown(how, marked)
        details = {"name": name, "group": how.kind.group, "kind": how.kind.plural, "uid": uid}
        shown = {name: value for name, value in details.items() if value}
        done = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": shown}
        return web.json_response(done)

    def _delete_all(self, how: Writing, request: web.Request, body: Any) -> web.Response:
        target = Target(how.kind.group, how.version, how.kind.plural, "list", how.namespace)
        wanted = self.selector(target, how.kind, request.query)
        found = [item for item in self.objects.store.items(how.kind) if wanted(item)]
        for item in found:
            each = Writing(how.kind, how.version, item["metadata"].get("namespace", ""), dry_run=how.dry_run)
            self.objects.delete(each, item["metadata"]["name"], _delete_options(request, body))
        return self._list(target, how.kind, {})

    def _issue(self, target: Target, body: Any) -> web.Response:
        """TokenRequest."""
        token = self.authority.issue(account_user(target.namespace, target.name))
        status = {"token": token, "expirationTimestamp": "2099-01-01T00:00:00Z"}
        return web.json_response({**body, "status": status}, status=201)

    def _shown(self, how: Writing, item: Item, warnings: list[str] | None = None, code: int = 200) -> web.Response:
        answer = web.json_response(self.objects.shown(item, how), status=code)
        for warning in warnings or ():
            escaped = warning.replace('"', r"\"")
            answer.headers.add("Warning", f'299 - "{escaped}"')
        return answer


async def read_body(request: web.Request) -> Any:
    """The body's JSON or YAML, ``None`` where there is none.

    :raises Refusal: 413 where it is too large, 400 where it is neither.
    """
    if (request.content_length or 0) > BODY_LIMIT:
        raise Refusal(413, "RequestEntityTooLarge", f"Request entity too large: limit is {BODY_LIMIT}")
    text = await request.read()
    if not text:
        return None
    try:
        return yaml.safe_load(text) if "yaml" in request.content_type else json.loads(text)
    except (ValueError, yaml.YAMLError) as error:
        raise bad_request(f"the object provided is unrecognized: {error}") from error


def _writing(target: Target, kind: Kind, request: web.Request, user: str) -> Writing:
    query = request.query
    agent = request.headers.get("User-Agent", "unknown").partition("/")[0]
    applies = request.content_type == APPLY
    return Writing(
        kind=kind,
        version=target.version,
        namespace=target.namespace,
        subresource=target.subresource,
        strict=query.get("fieldValidation") == "Strict",
        warn=query.get("fieldValidation", "Warn") == "Warn",
        dry_run=query.get("dryRun") == "All",
        manager=query.get("fieldManager", "unknown" if applies else agent),
        force=query.get("force", "").lower() == "true",
    )


def _delete_options(request: web.Request, body: Any) -> dict[str, Any]:
    """Options come in the body, in the query, or in both."""
    options = dict(body or {})
    if policy := request.query.get("propagationPolicy"):
        options.setdefault("propagationPolicy", policy)
    return options


def installed(kinds: Mapping[tuple[str, str], Kind], target: Target) -> Kind:
    """:raises Refusal: 404, plain text, for a kind or a version that is not there."""
    kind = kinds.get((target.group, target.resource))
    if kind is None or target.version not in kind.versions:
        raise Refusal(404, "NotFound", "404 page not found\n", plain=True)
    if kind.namespaced and not target.namespace and target.verb not in {"list", "watch"}:
        raise not_found(kind, target.name)
    return kind
