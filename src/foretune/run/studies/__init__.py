"""Classical studies of training speed, one file each."""

from foretune.run.studies.base import Study
from foretune.run.studies.batch_size import BATCH_SIZE
from foretune.run.studies.compiling import COMPILE
from foretune.run.studies.methods import METHODS
from foretune.run.studies.operators import OPERATORS
from foretune.run.studies.precision import PRECISION
from foretune.run.studies.workers import WORKERS

STUDIES: dict[str, Study] = {
    study.name: study for study in (OPERATORS, BATCH_SIZE, WORKERS, PRECISION, COMPILE, METHODS)
}
