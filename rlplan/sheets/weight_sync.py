"""How a framework brings trained weights to its engine, as data: `method` in a sheet of a transition."""

from dataclasses import dataclass
from typing import Literal

from rlplan.files.limits import AtLeastOne, Fraction, NonNegative, NonNegativeInt

# Who puts weights on the wire.
Sender = Literal["one rank", "stage heads", "every rank", "receivers"]
# What carries a bucket from a sender to the engine.
Transport = Literal["process", "broadcast", "point to point", "files"]
# Which pools it serves: one on which both layouts are, or two, generation having one of its own.
Pools = Literal["one", "two", "one or two"]
# Where weights are read from before they are sent.
Staging = Literal["none", "host", "host of one peer", "hosts of peers", "replica"]


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
        gathers: Whether training brings full tensors together before they are sent.
        broadcast_fraction: Share of the weights that one rank gathers and broadcasts all the same: what a
            point-to-point method leaves to the usual way.
        pipelined: Whether the stages of successive buckets overlap.
        packed: Whether a bucket is one message; else each of its tensors is one.
        relays: Whether ranks on the sender's node pass on what it sends, over their own network cards.
        bucket_bytes: Weights that are sent at a time; 0 is tensor by tensor.
        buckets_held: Buckets that a GPU has at a time, on either side.
        sent_fraction: Share of the weights' bytes that is sent: of what an update changed, with positions.
            Below 1 it is of the parameters that a token reaches: experts that few tokens reach change less.
        fixed_seconds: Every call: pausing the engine, meeting of all ranks, what it does at the end.
        bucket_seconds: Every bucket: calls, handles, waiting for the last rank.
        metadata_seconds: Every tensor: names and shapes that all ranks gather beforehand.
        gather_seconds: Every tensor: collectives of its own, conversion to the engine's names.
        gather_bytes_per_second: Rate at which a rank brings full tensors together, once for each way in
            which they are cut, and packs them.
        gather_network_bytes_per_second: The same where the ranks are not all on one fast link; 0 is no other.
        hop_seconds: Every message and node that a broadcast reaches.
        link_fraction: Share of the links' rate that the transport reaches.
        load_seconds: Every tensor: its way through the engine's loader.
        load_bytes_per_second: Rate at which an engine's rank, or a replica of it, takes weights in.
        file_bytes_per_second: Rate of the shared file system, written and read.
    """

    words: str
    pools: Pools
    sender: Sender
    transport: Transport
    staging: Staging = "none"
    gathers: bool = True
    broadcast_fraction: NonNegative = 0.0
    pipelined: bool = False
    packed: bool = True
    relays: bool = False
    bucket_bytes: NonNegativeInt = 0
    buckets_held: AtLeastOne = 1
    sent_fraction: Fraction = 1.0
    fixed_seconds: NonNegative = 0.0
    bucket_seconds: NonNegative = 0.0
    metadata_seconds: NonNegative = 0.0
    gather_seconds: NonNegative = 0.0
    gather_bytes_per_second: NonNegative = 0.0
    gather_network_bytes_per_second: NonNegative = 0.0
    hop_seconds: NonNegative = 0.0
    link_fraction: Fraction = 1.0
    load_seconds: NonNegative = 0.0
    load_bytes_per_second: NonNegative = 0.0
    file_bytes_per_second: NonNegative = 0.0
