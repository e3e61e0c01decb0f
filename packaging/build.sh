#!/usr/bin/env bash
# Builds dist/shadowrelay-VERSION-py3-none-any.whl, and dist/shadowrelay_VERSION_ARCH.deb for the Debian that this runs on: the program
# with its locked dependencies in /opt/shadowrelay, and its systemd unit. `make package`. docs/operations.md "Install".
set -euo pipefail
cd "$(dirname "$0")/.."

version=$(sed -nE 's/^__version__ = "(.*)"$/\1/p' shadowrelay/__init__.py)
python=/usr/bin/python3 # the package runs on Debian's own
series=$($python -c 'import sys; print("%d.%d" % sys.version_info[:2])')
following=$($python -c 'import sys; print("%d.%d" % (sys.version_info[0], sys.version_info[1] + 1))')
architecture=$(dpkg --print-architecture)

.venv/bin/hatchling build --target wheel --directory dist
wheel=$PWD/dist/shadowrelay-$version-py3-none-any.whl
sbom=$PWD/dist/shadowrelay-$version.cdx.json
.venv/bin/python packaging/sbom.py requirements/base.txt "$version" >"$sbom"

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
chmod 0755 "$root"
place=$root/opt/shadowrelay
mkdir -p "$root/opt"
$python -m venv --without-pip "$place"
install=(.venv/bin/python -m pip --python "$place/bin/python3" install --quiet --disable-pip-version-check --no-input --no-compile)
"${install[@]}" --require-hashes --requirement requirements/base.txt
"${install[@]}" --no-deps "$wheel"

# Programs name the interpreter of the place where they were made. Only one is wanted here.
find "$place/bin" -mindepth 1 ! -name 'python*' -delete
printf '%s\n' '#!/opt/shadowrelay/bin/python3' 'from shadowrelay.cli.main import app' 'app()' >"$place/bin/shadowrelay"
chmod 0755 "$place/bin/shadowrelay"
printf '%s\n' 'home = /usr/bin' 'include-system-site-packages = false' "version = $series" >"$place/pyvenv.cfg"
$python -m compileall -q -s "$root" -p / "$place/lib" # with the names that the files will have

mkdir -p "$root/usr/bin" "$root/lib/systemd/system" "$root/usr/share/doc/shadowrelay" "$root/DEBIAN"
ln -s /opt/shadowrelay/bin/shadowrelay "$root/usr/bin/shadowrelay"
cp shadowrelay/settings/shadowrelay.service "$root/lib/systemd/system/"
cp LICENSE "$root/usr/share/doc/shadowrelay/copyright"
cp CHANGELOG.md README.md "$root/usr/share/doc/shadowrelay/"
cp "$sbom" "$root/usr/share/doc/shadowrelay/sbom.cdx.json"
chmod -R u=rwX,go=rX "$root"
install -m 0755 packaging/postinst packaging/prerm packaging/postrm "$root/DEBIAN/"
cat >"$root/DEBIAN/control" <<END
Package: shadowrelay
Version: $version
Architecture: $architecture
Maintainer: shadowrelay developers <shadowrelay@localhost>
Section: mail
Priority: optional
Depends: python3 (>= $series~), python3 (<< $following~), passwd
Installed-Size: $(du -sk --exclude=DEBIAN "$root" | cut -f1)
Description: SMTP relay with shadow redundancy
 Says 250 to a message only when a second server holds a synced copy of it.
 If a server is lost, the one that holds the copy delivers the mail.
END
dpkg-deb --root-owner-group --build "$root" "dist/shadowrelay_${version}_$architecture.deb" >/dev/null
printf '%s\n' "$wheel" "$sbom" "$PWD/dist/shadowrelay_${version}_$architecture.deb"
