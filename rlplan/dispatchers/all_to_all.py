"""One message from every rank to every other, a row for each expert that a token chose (NCCL's all-to-all)."""

from rlplan.dispatchers import Dispatcher

DISPATCHER = Dispatcher(words="sends a row for each expert that a token chose", copies="expert")
