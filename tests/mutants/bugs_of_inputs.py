"""In what keeps files of strangers harmless: tensors, model folders, adapters, archives."""

from tests.mutants.bug import bug

_NAMES = "data/archives/test_names.py"
_IMPORTING = "data/archives/test_importing.py"
BUGS = (
    bug(
        "headers of tensors may have any length",
        "core/tensor_files.py",
        "if header_bytes > MOST_HEADER_BYTES:",
        "if header_bytes > 2**40:",
        "core/test_tensor_files.py",
    ),
    bug(
        "headers of tensors may be longer than the file",
        "core/tensor_files.py",
        "if header_bytes > left_bytes or header_bytes == 0:",
        "if header_bytes == 0:",
        "core/test_tensor_files.py",
    ),
    bug(
        "a model's index may name any library",
        "models/plain_folder.py",
        "if library is not None and library not in _LIBRARIES:",
        "if library is not None and not library:",
        "models/test_plain_folder.py",
    ),
    bug(
        "code deep in a configuration is overlooked",
        "models/plain_folder.py",
        "            left.extend(inner)\n",
        "            pass\n",
        "models/test_plain_folder.py",
    ),
    bug(
        "weights of a model may lie elsewhere",
        "models/plain_folder.py",
        "if not is_inside or not name.endswith",
        "if not name.endswith",
        "models/test_plain_folder.py",
    ),
    bug(
        "an adapter's settings may name modules",
        "models/adapter_settings.py",
        "if settings.get(key):",
        "if settings.get(key) == 1:",
        "models/test_plain_folder.py",
    ),
    bug(
        "names of an archive may lead out",
        "data/archives/names.py",
        'if ".." in parts:',
        'if "..." in parts:',
        _NAMES,
    ),
    bug(
        "names that differ in case are different files",
        "data/archives/names.py",
        "name.lower() if name.isascii() else",
        "name if name.isascii() else",
        _NAMES,
    ),
    bug(
        "an interrupted import stays",
        "data/archives/importing.py",
        "        shutil.rmtree(unfinished, ignore_errors=True)\n",
        "",
        _IMPORTING,
    ),
    bug(
        "an archive may unpack to anything",
        "data/archives/importing.py",
        "        self._limits.require_total(self._archive, self._num_bytes)\n",
        "",
        _IMPORTING,
    ),
)
