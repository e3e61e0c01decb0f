"""Writes what the program consists of, as a CycloneDX 1.5 document, from the locked requirements. docs/setup.md "Install".

python packaging/sbom.py requirements/base.txt VERSION > dist/shadowrelay-VERSION.cdx.json
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

REQUIREMENT = re.compile(r"(?m)^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;\\]+)((?:[^\n]*\\\n)*[^\n]*)")
HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


def document(requirements: str, version: str) -> dict[str, Any]:
    """The same text gives the same document: it has neither a time nor a random number."""
    name = f"pkg:pypi/shadowrelay@{version}"
    found = {match[1].lower().replace("_", "-"): (match[2], HASH.findall(match[3])) for match in REQUIREMENT.finditer(requirements)}
    components = [
        {
            "type": "library",
            "bom-ref": f"pkg:pypi/{package}@{number}",
            "name": package,
            "version": number,
            "purl": f"pkg:pypi/{package}@{number}",
            # of the files that may be installed, one for each platform
            "properties": [{"name": "shadowrelay:sha256", "value": each} for each in hashes],
        }
        for package, (number, hashes) in sorted(found.items())
    ]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application", "bom-ref": name, "name": "shadowrelay", "version": version, "purl": name,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            },
        },
        "components": components,
        "dependencies": [{"ref": name, "dependsOn": [str(one["bom-ref"]) for one in components]}],
    }  # fmt: skip


if __name__ == "__main__":
    json.dump(document(Path(sys.argv[1]).read_text(encoding="utf-8"), sys.argv[2]), sys.stdout, indent=2)
    print()
