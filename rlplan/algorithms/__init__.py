"""RL algorithms, one file each; a job names it as its file, with dashes for underscores."""

from rlplan.dataflow import Algorithm
from rlplan.plug_ins import PlugIns

ALGORITHMS = PlugIns[Algorithm](__name__, __path__, kind="algorithm", attribute="ALGORITHM")
algorithm_names, load_algorithm = ALGORITHMS.names, ALGORITHMS.load
