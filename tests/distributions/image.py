"""Base images of Debian's and Ubuntu's releases: those that are there, else pulled, else built from packages.

docs/operations.md "Where it runs".

A built one has the package sources and the authorities of this machine, so that apt-get and pip work inside as they do here.
"""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

MIRROR = "http://deb.debian.org/debian"
UBUNTU = {"noble": "24.04"}
UBUNTU_MIRROR = "http://archive.ubuntu.com/ubuntu"
UBUNTU_KEYRING = Path("/usr/share/keyrings/ubuntu-archive-keyring.gpg")
AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")
SCRIPTS = Path("/usr/share/debootstrap/scripts")
PULL_SECONDS = 120
PASSED = ("PIP_CERT", "SSL_CERT_FILE", "PIP_INDEX_URL", "PIP_DEFAULT_TIMEOUT", "http_proxy", "https_proxy", "no_proxy")


def base_image(release: str) -> str:
    """Its name. Raises: SystemExit with the remedy."""
    name = f"ubuntu:{UBUNTU[release]}" if release in UBUNTU else f"debian:{release}-slim"
    if _succeeds("docker", "image", "inspect", name):
        return name
    try:
        if _succeeds("docker", "pull", "--quiet", name, seconds=PULL_SECONDS):
            return name
    except subprocess.TimeoutExpired:
        pass
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        raise SystemExit(f"{name} cannot be pulled; to build it from packages be root, and apt-get install debootstrap")
    if release in UBUNTU and not UBUNTU_KEYRING.exists():
        raise SystemExit(
            f"{name} cannot be pulled; to build it from packages, put {UBUNTU_KEYRING.name} of Ubuntu's ubuntu-keyring in place"
        )
    print(f"{release}: building {name} from packages …", flush=True)
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        root = Path(directory) / "root"
        _bootstrap(release, root)
        changes = [word for key in PASSED if (value := os.environ.get(key)) for word in ("--change", f"ENV {key}={value}")]
        with subprocess.Popen(["tar", "-C", str(root), "-c", "."], stdout=subprocess.PIPE) as packed:
            subprocess.run(["docker", "import", *changes, "-", name], stdin=packed.stdout, stdout=subprocess.DEVNULL, check=True)
    return name


def _bootstrap(release: str, root: Path) -> None:
    options, components, mirror, script = [], "main", os.environ.get("DEBIAN_MIRROR", MIRROR), "sid"
    if release in UBUNTU:
        components, mirror, script = "main,universe", os.environ.get("UBUNTU_MIRROR", UBUNTU_MIRROR), "gutsy"
        options = [f"--components={components}", f"--keyring={UBUNTU_KEYRING}"]
    scripts = [] if (SCRIPTS / release).exists() else [str(SCRIPTS / script)]  # of a release that is newer than this machine
    command = ["debootstrap", "--variant=minbase", "--include=ca-certificates", *options, release, str(root), mirror, *scripts]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        variable = "UBUNTU_MIRROR" if release in UBUNTU else "DEBIAN_MIRROR"
        raise SystemExit(f"debootstrap of {release} failed: {done.stdout[-500:]}{done.stderr[-500:]}; another mirror: {variable}=URL")
    (root / "etc/apt/sources.list").write_text(f"deb {mirror} {release} {components.replace(',', ' ')}\n")
    if AUTHORITIES.exists():
        shutil.copy(AUTHORITIES, root / str(AUTHORITIES).lstrip("/"))
    for file in Path("/etc/apt/apt.conf.d").glob("*"):  # a proxy, or a mirror with an authority of its own
        if any(word in file.read_text(errors="replace").lower() for word in ("proxy", "verify", "check-valid")):
            shutil.copy(file, root / "etc/apt/apt.conf.d")


def _succeeds(*command: str, seconds: float | None = None) -> bool:
    return subprocess.run(command, capture_output=True, timeout=seconds, check=False).returncode == 0
