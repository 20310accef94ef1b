"""A worker: one process on one device of a pool, with its shards of all models of the pool.

Colocated tasks run one after another, in the order in which the controller sends them.
"""

import time
from typing import Any

import numpy as np
import ray
import torch
from torch import Tensor

from executor.data.batches import PADDING, RESPONSE, Columns, as_baseline, column_of, sequences_for
from executor.data.workload import response_lengths
from executor.learning.experience import effective_settings, make_experience
from executor.learning.train import update_model
from executor.parallel.meshes import reduce_sum_over_dp
from executor.passes.infer import infer
from executor.rollout.engines import EngineSetup, GenerationEngine, start_engine
from executor.rollout.sampling import GenerateSettings
from executor.weights.buckets import export_slices, write_slice
from executor.weights.flat import FlatParameters
from executor.weights.reshard import ShardLayout
from executor.weights.shard import ModelShard, freeze_collector
from executor.weights.stored_shards import load_shard, load_weights, save_shard, save_weights
from executor.weights.transition import shard_layout_of
from executor.workers.calls import (
    GENERATOR_FOLDER,
    CallReport,
    Outcome,
    StoreCall,
    TaskCall,
    run_task,
    wait_for,
)
from executor.workers.member import Member
from executor.workers.pool_models import PoolModels, PoolSetup
from executor.workers.process_state import read_random_states, write_random_states
from executor.workers.protocols import MICRO_DP, ONE_TO_ALL, THREE_D, registered
from executor.workers.weight_sync import BucketExport, BucketImport, ImportedBytes
from rlplan.algorithms import load_algorithm


class Worker(Member):
    """Run the tasks of a pool on one device."""

    @registered(ONE_TO_ALL)
    def prepare(self, setup: PoolSetup) -> None:
        """Build this rank's shards of the pool's models, and the groups of ranks that tasks need."""
        self._setup = setup
        self._algorithm = load_algorithm(setup.plan.job.algorithm)
        self._models = PoolModels(setup, self._place.rank, self._place.ranks, self._device)
        self._engines = {
            task.name: self._started(setup.plan.tasks[task.name].engine, task.name)
            for task in setup.tasks
            if task.kind == "generate"
        }
        freeze_collector()

    def _started(self, engine: str, task: str) -> GenerationEngine:
        plan, seed = self._setup.plan, self._setup.seed
        setup = EngineSetup(job=plan.job, layout=plan.tasks[task], seed=seed)
        return start_engine(engine, self._models.generator, setup)

    @registered(MICRO_DP)
    def generate(self, call: TaskCall, *pieces: Columns) -> Any:
        """Generate responses of this replica's prompts."""
        generator = self._models.generator
        outcome = run_task(
            call,
            pieces,
            lambda columns: self._generate(call, columns),
            leads=generator.mesh.comes_first,
        )
        if self._models.transition is not None:
            self._models.transition.end()
        return outcome

    def _generate(self, call: TaskCall, columns: Columns) -> Outcome:
        engine = self._engines[call.task.name]
        engine.load_weights()
        outputs, metrics = self._responses(call, columns)
        if "baseline_sequences" in call.task.outputs:
            greedy, greedy_metrics = self._responses(call, columns, greedy=True)
            outputs = {**outputs, **as_baseline(greedy)}
            metrics = {**metrics, "tokens": metrics["tokens"] + greedy_metrics["tokens"]}
        engine.release()
        return outputs, metrics

    def _responses(self, call: TaskCall, columns: Columns, *, greedy: bool = False) -> Outcome:
        setup, job, layout = (
            self._setup,
            self._setup.plan.job,
            self._setup.plan.tasks[call.task.name],
        )
        lengths = response_lengths(job, call.iteration)
        rows = np.concatenate(
            [np.arange(start, stop) for start, stop in call.rows] or [np.arange(0)]
        )
        made = self._engines[call.task.name].generate(
            self._tensor(columns["prompt_tokens"]),
            self._tensor(columns["prompt_present"]),
            self._tensor(lengths[rows]),
            torch.from_numpy(rows),
            int(lengths.max()),
            GenerateSettings(
                max_running=layout.max_running,
                temperature=job.hyperparameters.temperature,
                seed=setup.seed,
                iteration=call.iteration,
                eos_id=setup.eos_id,
                greedy=greedy,
            ),
        )
        sequences = {"tokens": _array(made.tokens), "parts": _array(made.parts)}
        metrics = {
            "response_tokens": float((sequences["parts"] == RESPONSE).sum()),
            "tokens": float((sequences["parts"] != PADDING).sum()),
        }
        outputs = {"sequences": sequences, "log_probs": {"log_probs": _array(made.log_probs)}}
        return outputs, metrics

    @registered(THREE_D)
    def infer(self, call: TaskCall, *pieces: Columns) -> Any:
        """Run a forward-only task on this rank's rows."""
        shard, layout = self._models.shards[call.task.role], self._setup.plan.tasks[call.task.name]

        def inferred(output: str, columns: Columns) -> Tensor | None:
            tokens, parts = sequences_for(output, columns)
            return infer(
                shard,
                self._tensor(tokens),
                self._tensor(parts),
                column_of(output),
                micro_batch=layout.micro_batch,
                temperature=self._setup.plan.job.hyperparameters.temperature,
            )

        def compute(columns: Columns) -> Outcome:
            with shard.weights_on_device():
                found = {output: inferred(output, columns) for output in call.task.outputs}
            known = {output: value for output, value in found.items() if value is not None}
            return {output: {output: _array(value)} for output, value in known.items()}, {}

        return run_task(call, pieces, compute, leads=shard.mesh.leads)

    @registered(THREE_D)
    def train(self, call: TaskCall, *pieces: Columns) -> Any:
        """Update a model on this rank's share of every mini-batch."""
        shard = self._models.shards[call.task.role]
        return run_task(
            call,
            pieces,
            lambda columns: self._train(call, shard, columns),
            leads=shard.mesh.leads,
        )

    def _train(self, call: TaskCall, shard: ModelShard, columns: Columns) -> Outcome:
        job, layout = self._setup.plan.job, self._setup.plan.tasks[call.task.name]
        batch, sums = make_experience(
            job,
            self._algorithm,
            {name: self._tensor(column) for name, column in columns.items()},
            call.state,
            reduce_sum_over_dp(shard.mesh),
        )
        assert call.task.loss is not None
        with shard.states_on_device():
            losses = update_model(
                shard,
                batch,
                call.task.loss,
                effective_settings(self._algorithm, job.hyperparameters),
                updates=job.workload.updates,
                epochs=job.workload.epochs,
                micro_batch=layout.micro_batch,
            )
        return {}, {**losses, **sums}

    @registered(ONE_TO_ALL)
    def reshard(self, _: None) -> CallReport:
        """Gather the generate shard from the training weights of this pool."""
        assert self._models.transition is not None
        start = time.time()
        self._models.transition.run()
        self._finish()
        moved = {
            "received_bytes_max": float(self._models.transition.received_bytes),
            "redundant_bytes_max": float(self._models.transition.redundant_bytes),
            "buffer_bytes_max": float(self._models.transition.buffer_bytes),
        }
        return CallReport(start_seconds=start, end_seconds=time.time(), metrics=moved)

    @registered(ONE_TO_ALL)
    def shard_layout(self, _: None) -> ShardLayout:
        """Return what this rank generates with, without the values."""
        return shard_layout_of(self._models.generator)

    @registered(ONE_TO_ALL)
    def export_weights(self, order: BucketExport) -> tuple[Any, CallReport]:
        """Put out this rank's part of a bucket for each shard of another pool, if it leads a copy.

        Fully sharded weights are gathered with the first bucket and kept until the last one.
        """
        wait_for(order.before)
        given: dict[tuple[int, int], Any] = {}
        shard = self._models.shards["actor"]
        if order.number == 0:
            self._export_start_seconds = time.time()
            self._exported: Tensor | None = shard.flat.whole_values()
        assert self._exported is not None, "buckets come in their order"
        if shard.mesh.copies.position == 0:
            tied = self._setup.plan.job.architecture("actor").tied_embeddings
            for target in order.targets:
                if (target.pp, target.tp) not in given:
                    message = export_slices(
                        shard_layout_of(shard),
                        self._exported,
                        order.blocks(target),
                        target.tp,
                        target_head_is_tied=tied,
                    )
                    given[target.pp, target.tp] = ray.put((message[0], _array(message[1])))
        if order.is_last:
            self._exported = None
        return given, CallReport(start_seconds=self._export_start_seconds, end_seconds=time.time())

    @registered(ONE_TO_ALL)
    def import_weights(self, arrival: BucketImport) -> CallReport:
        """Write a bucket of the generate shard from what another pool's ranks gave for it.

        Returns:
            When the first bucket began, and the bytes of all buckets so far.
        """
        generator = self._models.generator
        flat, place = generator.flat, (generator.mesh.pp, generator.mesh.tp)
        assert isinstance(flat, FlatParameters), "a copy on another pool is a whole one"
        wait_for(arrival.holders)
        if arrival.number == 0:
            self._imported = ImportedBytes(start_seconds=time.time())
        given = ray.get([each[place] for each in ray.get(list(arrival.holders))])
        self._imported.count(message.nbytes for _, message in given)
        entries = {entry.name: entry for entry in flat.entries}
        with torch.no_grad():
            for slices, message in given:
                values = self._tensor(message)
                for piece in slices:
                    write_slice(piece, values, flat.view_of(entries[piece.name]))
        self._finish()
        return self._imported.report()

    @registered(ONE_TO_ALL)
    def weights(self, role: str) -> dict[str, np.ndarray[Any, Any]]:
        """Return this rank's parts of a role's weights by name (`generator`: those it generates with)."""
        shard = self._models.generator if role == "generator" else self._models.shards[role]
        values = _array(shard.flat.whole_values().clone())  # what numpy sees cannot be given back
        return {
            e.name: values[e.start : e.stop].reshape(e.shape).copy() for e in shard.flat.entries
        }

    @registered(ONE_TO_ALL)
    def save_checkpoint(self, call: StoreCall) -> None:
        """Write this rank's parts of the models that are trained here, and its random states.

        Where what generates is an update behind, its weights too.
        """
        write_random_states(call.random_file)
        for role, shard in self._trained():
            with shard.states_on_device():
                save_shard(shard, call.folder / role, tied=self._is_tied(shard, role))
        if self._models.generates_behind:
            generator, folder = self._models.generator, call.folder / GENERATOR_FOLDER
            save_weights(generator, folder, tied=self._is_tied(generator, "actor"))

    @registered(ONE_TO_ALL)
    def load_checkpoint(self, call: StoreCall) -> bool:
        """Take over this rank's parts of the models, and its random states if there are any.

        Returns:
            Whether it now has the weights, an update behind, with which the next batch is generated.
        """
        for role, shard in self._trained():
            with shard.states_on_device():
                load_shard(shard, call.folder / role, tied=self._is_tied(shard, role))
        if call.random_file.exists():
            read_random_states(call.random_file)
        folder = call.folder / GENERATOR_FOLDER
        if not (self._models.generates_behind and folder.exists()):
            return False
        generator = self._models.generator
        load_weights(generator, folder, tied=self._is_tied(generator, "actor"))
        return True

    def _trained(self) -> list[tuple[str, ModelShard]]:
        shards = self._models.shards.items()
        return [(role, shard) for role, shard in shards if shard.trainer is not None]

    def _is_tied(self, shard: ModelShard, role: str) -> bool:
        return shard.head == "lm" and self._setup.plan.job.architecture(role).tied_embeddings


def _array(values: Tensor) -> np.ndarray[Any, Any]:
    return values.detach().cpu().numpy()
