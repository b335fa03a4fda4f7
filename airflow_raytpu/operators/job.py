"""``RayTpuJobOperator``: any program of the author's on whole TPU slices."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar

from airflow_raytpu.links import RayDashboardLink
from airflow_raytpu.model.errors import RequestError
from airflow_raytpu.model.policies import RetryBudget
from airflow_raytpu.model.request import Kind
from airflow_raytpu.operators import _arguments
from airflow_raytpu.operators._arguments import Target
from airflow_raytpu.operators._lifecycle import RequestOperator
from airflow_raytpu.placement.topology import TpuSlice
from airflow_raytpu.storage.code import Code, find_module
from airflow_raytpu.storage.programs import find_program


class RayTpuJobOperator(RequestOperator):
    """Run a program with whole TPU slices reserved: once on the driver, or once on each host.

    Returns ``{"value", "hosts", "chips", "slices", "chip_hours", "evictions", "failures", "causes"}``. ``value`` is
    what the function returned, and with *per_host* a list of that in order of the hosts; ``None`` for a script or a
    module. ``causes`` has a line for each restart.

    :param run: a function, ``"module:function"``, a script such as ``"tools/embed.py"``, or a module that is run as
        ``python -m`` does. A script is looked for where Python looks for modules, so beside the DAG file too; one in a
        folder brings that folder.
    :param op_args: positional arguments of the function (JSON), or the words behind the script or module.
    :param op_kwargs: keyword arguments of the function (JSON).
    :param per_host: run it once on each host of the slices, in a process with all chips of the host. Left out, it runs
        once on the driver, and places its own actors and tasks on the slices; see ``airflow_raytpu.runtime.here``.
    :param reserve: hold the slices while it runs. ``False`` is for a program that takes them in its own way, as Ray
        Train does: a whole slice is waited for, and then left to it.
    :param modules: modules or packages of yours that it imports, to be shipped with it. What *run* names comes with its
        own package anyway.
    :param env: further variables of its environment; never a secret.
    :param cluster: a :class:`RayTpuClusterOperator` task, its output, or a cluster's name. Left out, the task has a
        cluster of its own and needs *slice*.
    :param slice: a :class:`TpuSlice`, or text such as ``"v6e:4x4"``; the cluster's where left out.
    :param retry_budget: how often to begin again inside one try; each time from the program's start.
    """

    kind = Kind.JOB
    template_fields: Sequence[str] = (
        "cluster",
        "slice",
        "op_args",
        "op_kwargs",
        "env",
        "kuberay",
        "storage_path",
        "conn_id",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {
        "op_args": "json",
        "op_kwargs": "json",
        "env": "json",
        "cluster": "json",
    }
    operator_extra_links = (RayDashboardLink(),)
    ui_color = "#e3dcf5"

    def __init__(
        self,
        *,
        run: str | Callable[..., Any] | Code,
        op_args: Sequence[Any] = (),
        op_kwargs: Mapping[str, Any] | None = None,
        per_host: bool = False,
        reserve: bool = True,
        modules: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        cluster: Any = None,
        slice: TpuSlice | str | None = None,  # noqa: A002 - the author's word
        retry_budget: RetryBudget | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.program = find_program(run)
        self.modules = [find_module(name, "modules") for name in modules]
        self.op_args: Collection[Any] = op_args
        self.op_kwargs: Mapping[str, Any] = op_kwargs or {}
        self.per_host = per_host
        self.reserve = reserve
        self.env = env or {}
        self.cluster = self.run_on(cluster)
        self.slice = None if slice is None else _arguments.slice_text(slice)
        self.retry_budget = retry_budget or RetryBudget()
        self._check()
        self.refuse_early()

    def stated(self) -> dict[str, Any]:
        return {
            **_arguments.place(self.slice, self.cluster),
            "addresses": _arguments.literals(storage_path=self.storage_path),
        }

    def target(self) -> Target:
        return _arguments.target(self.slice, self.cluster)

    def codes(self) -> Sequence[Code]:
        return [self.program.code, *self.modules]

    def build(self, target: Target) -> dict[str, Any]:  # noqa: ARG002 - nothing here depends on the slice
        how = self.program.how
        return {
            "how": how,
            "entry": self.program.code.entry,
            "args": list(self.op_args) if how == "function" else _arguments.words(self.op_args, "op_args"),
            "kwargs": dict(self.op_kwargs),
            "per_host": self.per_host,
            "reserve": self.reserve,
            "env": {name: _arguments.word(value, f"env[{name!r}]") for name, value in self.env.items()},
            "failures": self.retry_budget.failures,
            "evictions": self.retry_budget.evictions,
        }

    def _check(self) -> None:
        if self.per_host and not self.reserve:
            raise RequestError(
                "per_host=True runs on reserved hosts, and reserve=False reserves none.", "Leave one of them out."
            )
        if self.op_kwargs and self.program.how != "function":
            raise RequestError(
                f"A {self.program.how} takes no op_kwargs: {', '.join(self.op_kwargs)}.",
                'Give op_args=["--name", "value"].',
            )
        _arguments.refuse_text(self.op_args, "op_args")
