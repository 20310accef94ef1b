"""All ranks gather all tokens, compute those of their own experts, and add up by a reduce-scatter.

Megatron-Core, transformer/moe/token_dispatcher.py, MoEAllGatherTokenDispatcher (`--moe-token-dispatcher-type allgather`).
"""

from rlplan.dispatchers import Dispatcher

DISPATCHER = Dispatcher(words="brings all tokens to all ranks", copies="all")
