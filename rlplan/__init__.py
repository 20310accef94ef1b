"""The vocabulary of rlplan: frozen types, units, errors and the strict reading of files.

Every room speaks these words; they import none of them. The rooms (`rlplan.planner`, `rlplan.simulator`, ...) lie
beside this folder and are members of it by links. What a notebook or script calls has its names here; it loads
rooms when it is called.
"""

from rlplan.job import Job as Job
from rlplan.plan import Plan as Plan
from rlplan.results.forecast import Forecast as Forecast
from rlplan.results.forecast import SearchResult as SearchResult
from rlplan_cli.interface import check as check
from rlplan_cli.interface import execute as execute
from rlplan_cli.interface import load_job as load_job
from rlplan_cli.interface import load_plan as load_plan
from rlplan_cli.interface import search as search
from rlplan_cli.interface import simulate as simulate

__version__ = "0.1.0"
