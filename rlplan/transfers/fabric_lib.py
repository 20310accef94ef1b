"""Perplexity's fabric-lib: every training rank writes what ranks of the other pool keep, by RDMA."""

from rlplan.transfers import method

TRANSITION = method(
    "gathered by every rank and written by RDMA, what each rank of the other pool keeps",
    between_pools=True,
)
