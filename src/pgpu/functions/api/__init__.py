"""What the author of a function imports: `@pgpu.function`, `Batch`, `Context`, and the file `pgpu.toml`.

Imports no third-party package (an import-linter contract checks it): `import pgpu` in a user's module is cheap, and the module
still runs in a notebook or a test where the libraries of functions are not installed.
"""

from pgpu.functions.api.declaration import (
    Batch,
    Declaration,
    FormerKeyWarning,
    check_name,
    default_name,
    dump_declaration,
    dump_served,
    parse_declaration,
)
from pgpu.functions.api.decorator import Context, attached_declaration, function
from pgpu.functions.api.project_file import PROJECT_FILE, ProjectSection, parse_project, read_project
from pgpu.functions.api.surroundings import CacheUse, DirectoryMount, SecretUse, check_secret_name

__all__ = [
    "PROJECT_FILE",
    "Batch",
    "CacheUse",
    "Context",
    "Declaration",
    "DirectoryMount",
    "FormerKeyWarning",
    "ProjectSection",
    "SecretUse",
    "attached_declaration",
    "check_name",
    "check_secret_name",
    "default_name",
    "dump_declaration",
    "dump_served",
    "function",
    "parse_declaration",
    "parse_project",
    "read_project",
]
