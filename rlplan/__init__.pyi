from rlplan.job import Job as Job
from rlplan.plan import Plan as Plan
from rlplan.results.forecast import Forecast as Forecast
from rlplan.results.searched import SearchResult as SearchResult
from rlplan_cli.interface import check as check
from rlplan_cli.interface import execute as execute
from rlplan_cli.interface import load_job as load_job
from rlplan_cli.interface import load_plan as load_plan
from rlplan_cli.interface import search as search
from rlplan_cli.interface import simulate as simulate

__version__: str
