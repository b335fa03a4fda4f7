"""Batch inference: every row of a Parquet input through the author's model, on one mesh over whole slices."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Self

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from airflow_raytpu.model.errors import LostError, PathError, RowCountError, StallTimeout, StartTimeout
from airflow_raytpu.model.policies import RetryBudget
from airflow_raytpu.model.request import RayRequest
from airflow_raytpu.placement.plan import SlicePlan, plan
from airflow_raytpu.placement.topology import TpuSlice
from airflow_raytpu.runtime import files, neighbours, output, relay
from airflow_raytpu.runtime.author import AuthorError
from airflow_raytpu.runtime.batching import HostWork, Part, parts, split
from airflow_raytpu.runtime.columns import is_numeric
from airflow_raytpu.runtime.faults import cause_of, meaning
from airflow_raytpu.runtime.lineage import GIVE, lineage
from airflow_raytpu.runtime.outbox import Outbox
from airflow_raytpu.runtime.parquet import ParquetFile, scan
from airflow_raytpu.runtime.scorer import Program, Scorer
from airflow_raytpu.runtime.slices import ReservedSlice
from airflow_raytpu.runtime.spans import Span
from airflow_raytpu.runtime.survey import own_slice
from airflow_raytpu.runtime.tries import Tries

_TURN_S = 1.0
_FAREWELL_S = 3.0

log = logging.getLogger(__name__)


def run(request: RayRequest, outbox: Outbox) -> Mapping[str, Any]:
    """Predict as *request* says.

    :raises AuthorError: the author's code raised.
    :raises BatchSizeError: ``ragged="raise"`` and the last batch would not be full.
    :raises LostError: slices were lost more often than they may be.
    :raises NoSliceError: no whole slice in time.
    :raises RowCountError: the output has not the rows it should have.
    """
    shape = TpuSlice.parse(request.slice) if request.slice else own_slice(ray.nodes())
    return _Inference(request, outbox, plan(shape)).run()


def columns_of(found: Sequence[ParquetFile], wanted: Sequence[str] | None) -> tuple[str, ...]:
    """The columns that the model is given: the *wanted* ones, or all that are numbers.

    :raises PathError: one is missing, or is no number.
    """
    schema = found[0].schema
    names = [column.name for column in schema if is_numeric(column.type)] if wanted is None else list(wanted)
    for file in found:
        for name in names:
            if name not in file.schema.names or not is_numeric(file.schema.field(name).type):
                raise PathError(
                    f"{file.root}/{file.name} has no column {name!r} of numbers.",
                    f"It has {', '.join(f'{column.name} ({column.type})' for column in file.schema)}.",
                )
    if not names:
        raise PathError(
            f"{found[0].root} has no column of numbers.", "A model takes numbers, truth values, or equal lists of them."
        )
    return tuple(names)


class _Inference:
    def __init__(self, request: RayRequest, outbox: Outbox, slice_plan: SlicePlan) -> None:
        self._request, self._outbox, self._plan = request, outbox, slice_plan
        self._arguments = request.arguments
        self._folder = str(self._arguments["output"]).rstrip("/")
        # It states no budget of its own. Airflow's side begins it again by the same one.
        self._tries = Tries(request, outbox, slice_plan, asdict(RetryBudget()))

    def run(self) -> Mapping[str, Any]:
        began, arguments = time.time(), self._arguments
        self._plan.check_batch(arguments["batch_size"])
        found = scan(arguments["input"])
        program = self._program(found)
        made = parts(found, arguments["batch_size"], arguments["ragged"])
        todo = self._todo(made)
        left = {number: part for number, part in todo if part.keep}
        if left:
            self._check_access()
            self._tries.run(lambda held: self._once(program, held, left))
        like = next((part for part in made if part.keep), None)
        for _, part in todo:
            if not part.keep:
                output.write_empty(
                    part, self._folder, like, {"request": self._request.name, "model": arguments["model"]}
                )
        rows_out = output.count(made, self._folder)
        rows_in, rows_kept = sum(file.rows for file in found), sum(part.keep for part in made)
        if rows_out != rows_kept:
            raise RowCountError(
                f"{rows_in:,} rows in, {rows_in - rows_kept:,} dropped, yet {rows_out:,} rows out in {self._folder}.",
                "Somebody else writes there, or a part was replaced; clear the task to write it anew.",
            )
        if rows_in != rows_kept:
            log.warning(
                "%d of %d rows fill no whole batch and were dropped (ragged='drop')", rows_in - rows_kept, rows_in
            )
        fresh, spent = sum(part.keep for _, part in todo), self._tries.tally.spent
        return {
            "rows_in": rows_in,
            "rows_out": rows_out,
            "rows_dropped": rows_in - rows_kept,
            "parts": len(made),
            "parts_skipped": len(made) - len(todo),
            "rows_per_s": round(fresh / max(time.time() - began, 1e-9), 1),
            "output": self._folder,
            "evictions": spent.evictions,
            "causes": list(spent.causes),
        }

    def _check_access(self) -> None:
        """See before there is a slice that the hosts can read the model and write their parts.

        :raises PathError: they cannot.
        """
        model = self._arguments["model"]
        if model and self._arguments["load"] is None and files.read_bytes(f"{model}/_METADATA") is None:
            raise PathError(f"There is no checkpoint at {model}.", GIVE)
        files.make_folder(self._folder)

    def _program(self, found: Sequence[ParquetFile]) -> Program:
        arguments = self._arguments
        return Program(
            request=self._request.name,
            predict=arguments["predict"],
            load=arguments["load"],
            model=arguments["model"],
            columns=columns_of(found, arguments["columns"]),
            taken=tuple(found[0].schema.names),
        )

    def _todo(self, made: Sequence[Part]) -> list[tuple[int, Part]]:
        """The parts that are not there yet."""
        todo = output.missing(made, self._folder, lineage(self._request), self._arguments["model"])
        if len(todo) < len(made):
            log.info("%d of %d parts are there already", len(made) - len(todo), len(made))
        return todo

    def _once(self, program: Program, held: ReservedSlice, left: dict[int, Part]) -> None:
        """One try at the parts that are *left*, by number. Those that it writes are taken out."""
        try:
            self._score(program, held, left)
        except LostError as error:
            if left:
                raise
            log.warning("All parts had been written when this happened: %s", error.cause)

    def _score(self, program: Program, held: ReservedSlice, left: dict[int, Part]) -> None:
        work = split(list(left.items()), self._plan.workers, self._arguments["batch_size"])
        try:
            with _Crew(program, held, self._request.limits.start_s) as crew:
                self._outbox.tell(phase="compiling", message="")
                _Stream(self._request, self._outbox, crew, left, work, self._folder, self._tries.got_on).run()
        except AuthorError as error:
            cause = cause_of(error, held)
            if cause is not error:
                raise cause from error
            raise


class _Crew:
    """One scorer on each host of a held slice, joined into one mesh. Ended with its context."""

    def __init__(self, program: Program, held: ReservedSlice, start_s: float) -> None:
        self._held, self._program, self._start_s = held, program, start_s
        self.actors: list[Any] = []

    def __enter__(self) -> Self:
        make = ray.remote(Scorer)
        for number, host in enumerate(self._held.hosts):
            place = PlacementGroupSchedulingStrategy(self._held.group, placement_group_bundle_index=host.bundle)
            self.actors.append(
                make.options(
                    num_cpus=1,
                    resources={"TPU": self._held.plan.chips_per_worker},
                    scheduling_strategy=place,
                    # One thread runs the model, the others commit parts beside it.
                    max_concurrency=3,
                ).remote(self._program, number)
            )
        try:
            plan_, until = self._held.plan, time.time() + self._start_s
            addresses = self._gather([actor.address.remote() for actor in self.actors], until)
            told = neighbours.environments(plan_, [address.rpartition(":")[0] for address in addresses])
            joins = [
                actor.join.remote(addresses[0], plan_.workers, plan_.devices, each)
                for actor, each in zip(self.actors, told, strict=True)
            ]
            self._gather(joins, until)
        except BaseException:
            self._kill()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and len(self.actors) > 1:
            farewells = [actor.leave.remote() for actor in self.actors]
            ray.wait(farewells, num_returns=len(farewells), timeout=_FAREWELL_S)
        self._kill()

    def name(self, number: int) -> str:
        host = self._held.hosts[number]
        return f"host {host.worker_id} of slice {host.slice_name}"

    def _gather(self, references: list[Any], until: float) -> list[Any]:
        """:raises StartTimeout: a host has not answered, and is named."""
        _, late = ray.wait(references, num_returns=len(references), timeout=max(0.0, until - time.time()))
        if late:
            missing = ", ".join(self.name(references.index(reference)) for reference in late)
            raise StartTimeout(f"No mesh within {self._start_s:.0f} s (start): {missing} did not come.", "Raise start.")
        return [self.answer(reference, number) for number, reference in enumerate(references)]

    def answer(self, reference: Any, number: int) -> Any:
        """What host *number* answered, its error in our words."""
        try:
            return ray.get(reference)
        except ray.exceptions.RayError as error:
            raise meaning(error, self.name(number)) from error

    def _kill(self) -> None:
        for actor in self.actors:
            ray.kill(actor)


class _Stream:
    """Pieces as hosts finish them, parts as their pieces are complete.

    :param left: the parts by number; those that are written are taken out.
    :param written: called after each.
    """

    def __init__(
        self,
        request: RayRequest,
        outbox: Outbox,
        crew: _Crew,
        left: dict[int, Part],
        work: Sequence[HostWork],
        folder: str,
        written: Callable[[], None],
    ) -> None:
        self._request, self._outbox, self._crew, self._left, self._work = request, outbox, crew, left, work
        self._folder, self._written = folder, written
        self._missing: dict[int, int] = {}
        for host in work:
            for piece in host.pieces:
                self._missing[piece.part] = self._missing.get(piece.part, 0) + 1
        self._got: dict[int, list[tuple[int, Any]]] = {number: [] for number in self._missing}
        self._commits: dict[Any, tuple[int, int]] = {}
        self._total = sum(host.rows for host in work)
        self._moved_at, self._seen, self._rate_from = time.time(), 0, (0, 0.0)

    def run(self) -> None:
        """:raises StallTimeout: no row within ``stall``."""
        relay.clear(self._request.name)
        sample = next(piece.span for host in self._work for piece in host.pieces)
        first = Span(sample.file, sample.start, sample.start + 1)
        streams = {
            actor.run.options(num_returns="streaming").remote(work, first): number
            for number, (actor, work) in enumerate(zip(self._crew.actors, self._work, strict=True))
        }
        while streams or self._commits:
            ready, _ = ray.wait([*streams, *self._commits], num_returns=1, timeout=_TURN_S, fetch_local=False)
            for reference in ready:
                if reference in streams:
                    self._take(streams, reference)
                else:
                    self._take_commit(reference)
            self._tell()
        self._outbox.tell(phase="inferring", unit="row", done=self._total, total=self._total)

    def _take(self, streams: dict[Any, int], stream: Any) -> None:
        host = streams[stream]
        try:
            reference = next(stream)
        except StopIteration:
            del streams[stream]
            return
        piece = self._work[host].pieces[self._crew.answer(reference, host)]
        self._got[piece.part].append((piece.span.start, next(stream)))
        if len(self._got[piece.part]) == self._missing[piece.part]:
            actor, pieces = self._crew.actors[host], self._got.pop(piece.part)
            self._commits[actor.commit.remote(self._left[piece.part], self._folder, pieces)] = host, piece.part

    def _take_commit(self, reference: Any) -> None:
        host, part = self._commits.pop(reference)
        self._crew.answer(reference, host)
        del self._left[part]
        self._written()

    def _tell(self) -> None:
        news = [relay.collect(self._request.name, f"rows/{number}") for number in range(len(self._work))]
        rows, now = sum(item["rows"] for item in news if item), time.time()
        if rows > self._seen:
            self._seen, self._moved_at = rows, now
            before, since = self._rate_from
            rate = (rows - before) / (now - since) if since else 0.0
            self._rate_from = (rows, now)
            self._outbox.tell(phase="inferring", unit="row", done=rows, total=self._total, rate=rate, message="")
        elif not self._seen:
            # Once there has been a row, Airflow's side counts stall: another try's start is for us alone to count.
            self._outbox.tell(at=now)
        self._outbox.flush()
        limits = self._request.limits
        if self._seen and now - self._moved_at > limits.stall_s:
            raise StallTimeout(
                f"No row for {now - self._moved_at:.0f} s (stall is {limits.stall_s:.0f} s).", "Raise stall."
            )
        if not self._seen and now - self._moved_at > limits.start_s:
            raise StartTimeout(
                f"No row within {limits.start_s:.0f} s of the mesh (start).", "Raise start, if compiling takes longer."
            )
