"""The transfer queue between generation and training: rows by sample, columns by task output, unpadded.

It knows samples, tasks and bytes; not versions of weights, nor when anything should be begun or learnt from.
"""
