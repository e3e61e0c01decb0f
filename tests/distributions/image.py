"""Base images of Debian's releases: those that are there, else pulled, else built from packages. docs/operations.md "Where it runs".

A built one has the package sources and the authorities of this machine, so that apt-get and pip work inside as they do here.
"""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

MIRROR = "http://deb.debian.org/debian"
AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")
SCRIPTS = Path("/usr/share/debootstrap/scripts")
PULL_SECONDS = 120
PASSED = ("PIP_CERT", "SSL_CERT_FILE", "PIP_INDEX_URL", "PIP_DEFAULT_TIMEOUT", "http_proxy", "https_proxy", "no_proxy")


def base_image(release: str) -> str:
    """Its name. Raises: SystemExit with the remedy."""
    name = f"debian:{release}-slim"
    if _succeeds("docker", "image", "inspect", name):
        return name
    try:
        if _succeeds("docker", "pull", "--quiet", name, seconds=PULL_SECONDS):
            return name
    except subprocess.TimeoutExpired:
        pass
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        raise SystemExit(f"{name} cannot be pulled; to build it from packages be root, and apt-get install debootstrap")
    print(f"{release}: building {name} from Debian's packages …", flush=True)
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        root = Path(directory) / "root"
        _bootstrap(release, root)
        changes = [word for key in PASSED if (value := os.environ.get(key)) for word in ("--change", f"ENV {key}={value}")]
        with subprocess.Popen(["tar", "-C", str(root), "-c", "."], stdout=subprocess.PIPE) as packed:
            subprocess.run(["docker", "import", *changes, "-", name], stdin=packed.stdout, stdout=subprocess.DEVNULL, check=True)
    return name


def _bootstrap(release: str, root: Path) -> None:
    script = [] if (SCRIPTS / release).exists() else [str(SCRIPTS / "sid")]  # of a release that is newer than this machine
    mirror = os.environ.get("DEBIAN_MIRROR", MIRROR)
    command = ["debootstrap", "--variant=minbase", "--include=ca-certificates", release, str(root), mirror, *script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"debootstrap of {release} failed: {done.stdout[-500:]}{done.stderr[-500:]}; another mirror: DEBIAN_MIRROR=URL")
    (root / "etc/apt/sources.list").write_text(f"deb {mirror} {release} main\n")
    if AUTHORITIES.exists():
        shutil.copy(AUTHORITIES, root / str(AUTHORITIES).lstrip("/"))
    for file in Path("/etc/apt/apt.conf.d").glob("*"):  # a proxy, or a mirror with an authority of its own
        if any(word in file.read_text(errors="replace").lower() for word in ("proxy", "verify", "check-valid")):
            shutil.copy(file, root / "etc/apt/apt.conf.d")


def _succeeds(*command: str, seconds: float | None = None) -> bool:
    return subprocess.run(command, capture_output=True, timeout=seconds, check=False).returncode == 0
