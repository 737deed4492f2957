"""Manifests as text, for a terminal, a file or a repository. It refuses tags and anchors: any reader of YAML takes it."""

import json
from collections.abc import Sequence

import yaml

from pgpu.kubernetes.deploy.object_names import Manifest


def as_yaml(objects: Sequence[Manifest]) -> str:
    """Write objects as YAML documents; text of several lines is a block that people can read."""
    return yaml.dump_all(
        objects, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=_WIDTH, explicit_start=True
    )


def as_json(objects: Sequence[Manifest]) -> str:
    """Write objects as one JSON object, a list of Kubernetes."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}, indent=2) + "\n"


_WIDTH = 1 << 20
"""Lines are not folded: a declaration stays one."""


class _Dumper(yaml.SafeDumper):
    """Writes each value out where it stands, and texts of several lines as blocks."""

    def ignore_aliases(self, _data: object) -> bool:
        """No value is written by a reference to another."""
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)
