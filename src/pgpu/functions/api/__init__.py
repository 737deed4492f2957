"""What a function's author says about it: `@pgpu.function`, `Batch`, `Context` and `pgpu.toml`.

It stands below everything else and imports no third-party package, so that `import pgpu` in somebody's module costs
nothing and that module still runs in a notebook. It refuses to load, to call or to know HTTP.
"""

from pgpu.functions.api.context import Context
from pgpu.functions.api.declaration import Batch, Declaration
from pgpu.functions.api.declaration_fields import dump_declaration, parse_declaration
from pgpu.functions.api.decorator import attached_declaration, function
from pgpu.functions.api.function_name import check_name, default_name
from pgpu.functions.api.project_file import PROJECT_FILE, ProjectSection, parse_project, read_project

__all__ = [
    "PROJECT_FILE",
    "Batch",
    "Context",
    "Declaration",
    "ProjectSection",
    "attached_declaration",
    "check_name",
    "default_name",
    "dump_declaration",
    "function",
    "parse_declaration",
    "parse_project",
    "read_project",
]
