"""Classical studies of training speed, one file each."""

from foretune.studies.named.base import Study
from foretune.studies.named.batch_size import BATCH_SIZE
from foretune.studies.named.compiling import COMPILE
from foretune.studies.named.methods import METHODS
from foretune.studies.named.operators import OPERATORS
from foretune.studies.named.precision import PRECISION
from foretune.studies.named.workers import WORKERS

STUDIES: dict[str, Study] = {
    study.name: study for study in (OPERATORS, BATCH_SIZE, WORKERS, PRECISION, COMPILE, METHODS)
}
