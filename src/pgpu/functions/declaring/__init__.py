"""What a function's author says about it: `@pgpu.function`, `Batch`, `Context` and `pgpu.toml`.

It stands below everything else and imports no third-party package, so that `import pgpu` in somebody's module costs
nothing and that module still runs in a notebook. It refuses to load, to call or to know HTTP.
"""

from pgpu.functions.declaring.attaching import declared, function
from pgpu.functions.declaring.context import Context
from pgpu.functions.declaring.declaration import Batch, Declaration
from pgpu.functions.declaring.naming import check_name, name_of
from pgpu.functions.declaring.project import PROJECT_FILE, Section, read_project, sections
from pgpu.functions.declaring.words import from_words, to_words

__all__ = [
    "PROJECT_FILE",
    "Batch",
    "Context",
    "Declaration",
    "Section",
    "check_name",
    "declared",
    "from_words",
    "function",
    "name_of",
    "read_project",
    "sections",
    "to_words",
]
