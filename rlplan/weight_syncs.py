"""What is known of how weights reach engines, as files say it: methods of frameworks, and constants of transitions."""

from dataclasses import dataclass
from typing import Literal

from rlplan.files.frozen import FrozenDict
from rlplan.files.limits import AtLeastOne, Fraction, NonNegative, NonNegativeInt

# Who puts weights on the wire.
Sender = Literal["one rank", "stage heads", "every rank", "receivers"]
# What carries a bucket from a sender to the engine.
Transport = Literal["process", "broadcast", "point to point", "files"]
# Which pools it serves: one on which both layouts are, or two, generation having one of its own.
Pools = Literal["one", "two", "one or two"]
# Where weights are read from before they are sent.
Staging = Literal["none", "host", "host of one peer", "hosts of peers", "replica"]
# What that overlaps with where buckets do: all else; the loading of one bucket, since all read one each before the
# first of them is sent; or of every bucket, by whom sends it too.
StagingOverlap = Literal["everything", "one load", "loading"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncMethod:
    """Describe a way to sync weights: the pattern that its code has, and the rates that its software reaches.

    Weights pass four stages, bucket by bucket: training brings full tensors together, they are staged
    through host memory, carried, and loaded by the engine. Rates of 0 add nothing.

    Attributes:
        words: What it does, for people, as the end of a sentence.
        pools: Which pools it serves.
        sender: `one rank` gathers the whole model and sends; `stage heads` are the first ranks of the
            pipeline stages, which gather at once and send in turn; `every rank` sends from what it
            gathered of its stage, or holds; `receivers` have all weights in their hosts' memory.
        transport: `process` hands over addresses on one GPU (in process, CUDA IPC); `broadcast` brings
            every byte to every rank of the engine; `point to point` brings a rank what it keeps;
            `files` are written whole and read.
        staging: Whether weights are first copied from pinned host memory, of the rank's own node or,
            over the network, of others, by one rank at a time or by all at once; or whether senders load
            them into a `replica` of the engine's rank in their hosts' memory, from which they are sent.
        staging_overlaps: What staging overlaps with where stages of successive buckets do.
        staging_fraction: Share of the network's rate that reads from other hosts reach; 0 is `link_fraction`.
        gathers: Whether training brings full tensors together before they are sent.
        gathers_at_once: Whether a sender of fully sharded weights has all of them whole at a time, in its trainer's format.
        broadcast_fraction: Share of the weights that one rank gathers and broadcasts all the same: what a
            point-to-point method leaves to the usual way.
        pipelined: Whether the stages of successive buckets overlap.
        packed: Whether a bucket is one message; else each of its tensors is one.
        relays: Whether ranks on the sender's node pass on what it sends, over their own network cards.
        bucket_bytes: Weights that are sent at a time; 0 is tensor by tensor.
        buckets_held: Buckets that a GPU has at a time, on either side.
        handed_on: Whether a process beside the engine of another pool takes weights in, and hands them to it through one
            more bucket.
        by_rdma: Whether bytes pass between two pools by RDMA alone, without a group of NCCL of their ranks.
        frees_cache: Starts of the names of engines of another pool that give their KV cache back while weights come; all
            others keep it.
        sent_fraction: Share of the weights' bytes that is sent: of what an update changed, with positions.
            Below 1 it is of the parameters that a token reaches: experts that few tokens reach change less.
        fixed_seconds: Every call: pausing the engine, a barrier of all ranks, and the steps at its end.
        bucket_seconds: Every bucket: calls, handles, waiting for the last rank.
        metadata_seconds: Every tensor: names and shapes that all ranks gather beforehand.
        gather_seconds: Every tensor: collectives of its own, conversion to the engine's names.
        gather_bytes_per_second: Rate at which a rank gathers full tensors, once for each dimension of parallelism
            that cuts them, and packs them.
        gather_network_bytes_per_second: The same where ranks that train are not all on one fast link; 0 is the same rate.
        restore_bytes_per_second: Rate at which a rank's shard comes back from pageable host memory, tensor by tensor
            as it is gathered, where training off-loads it; 0 counts it with the step alone.
        hop_seconds: Every message and node that a broadcast reaches.
        link_fraction: Share of the links' rate that the transport reaches.
        load_seconds: Every tensor: its way through the engine's loader.
        cast_seconds: Every tensor beyond that, where the engine's ranks cast it to a narrow format themselves.
        load_bytes_per_second: Rate at which an engine's rank, or a replica of it, takes weights in.
        file_bytes_per_second: Rate of the shared file system, written and read.
    """

    words: str
    pools: Pools
    sender: Sender
    transport: Transport
    staging: Staging = "none"
    staging_overlaps: StagingOverlap = "everything"
    staging_fraction: NonNegative = 0.0
    gathers: bool = True
    gathers_at_once: bool = False
    broadcast_fraction: NonNegative = 0.0
    pipelined: bool = False
    packed: bool = True
    relays: bool = False
    bucket_bytes: NonNegativeInt = 0
    buckets_held: AtLeastOne = 1
    handed_on: bool = False
    by_rdma: bool = False
    frees_cache: tuple[str, ...] = ()
    sent_fraction: Fraction = 1.0
    fixed_seconds: NonNegative = 0.0
    bucket_seconds: NonNegative = 0.0
    metadata_seconds: NonNegative = 0.0
    gather_seconds: NonNegative = 0.0
    gather_bytes_per_second: NonNegative = 0.0
    gather_network_bytes_per_second: NonNegative = 0.0
    restore_bytes_per_second: NonNegative = 0.0
    hop_seconds: NonNegative = 0.0
    link_fraction: Fraction = 1.0
    load_seconds: NonNegative = 0.0
    cast_seconds: NonNegative = 0.0
    load_bytes_per_second: NonNegative = 0.0
    file_bytes_per_second: NonNegative = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TransitionSheet:
    """Hold the named constants of a transition's software on GPUs; 0 adds nothing.

    A transition moves tensor by tensor through Python: its rates are far below the links'. It takes
    fixed + node (n - 1) + received / received rate + written / written rate + M / walked rate
    + M g (g - 1) / pair rate + M (1 - 1/n) / crossing rate seconds on n nodes where g groups gather,
    M being the bytes of the whole model.

    Attributes:
        fixed_seconds: Every call: rebuilding buffers, emptying caches, meeting of all ranks.
        node_seconds: For every node beyond the first: all of its ranks meet the others.
        received_bytes_per_second: Rate at which a GPU takes in what it receives.
        written_bytes_per_second: Rate at which a GPU writes all that it generates with: its own part moves
            to its place among what it receives.
        walked_bytes_per_second: Rate at which every rank walks through all tensors of the model.
        pair_bytes_per_second: Rate of what every pair of groups, which gather at once, adds to the gathers of
            all tensors; groups of one node count once, and one that is all there is as its nodes.
        crossing_bytes_per_second: Rate of the one stream of weights to the other pool's nodes.
        spread_fraction: Relative error of the rows that the constants were fitted on, one sigma.
        method: A framework's way to sync weights, which the constants above are not about; None where
            the transition's own formula says what moves.
        sources: Origin of every constant.
    """

    name: str
    fixed_seconds: NonNegative = 0.0
    node_seconds: NonNegative = 0.0
    received_bytes_per_second: NonNegative = 0.0
    written_bytes_per_second: NonNegative = 0.0
    walked_bytes_per_second: NonNegative = 0.0
    pair_bytes_per_second: NonNegative = 0.0
    crossing_bytes_per_second: NonNegative = 0.0
    spread_fraction: NonNegative = 0.0
    method: SyncMethod | None = None
    sources: FrozenDict[str, str]

    def software_seconds(
        self,
        model_bytes: float,
        received_bytes: float,
        written_bytes: float,
        nodes: int,
        groups: int,
    ) -> float:
        """Return the seconds that the software needs for a model on so many nodes.

        Args:
            received_bytes: What each GPU receives.
            written_bytes: What each GPU generates with.
            groups: Groups of ranks that gather at once.
        """
        apart = nodes if groups == 1 else min(groups, nodes)
        seconds = self.fixed_seconds + self.node_seconds * (nodes - 1)
        terms = (
            (received_bytes, self.received_bytes_per_second),
            (written_bytes, self.written_bytes_per_second),
            (model_bytes, self.walked_bytes_per_second),
            (model_bytes * apart * (apart - 1), self.pair_bytes_per_second),
            (model_bytes * (1 - 1 / nodes), self.crossing_bytes_per_second),
        )
        return seconds + sum(num_bytes / rate for num_bytes, rate in terms if rate)
