#!/usr/bin/env bash
# Builds dist/shadowrelay-VERSION-py3-none-any.whl, and dist/shadowrelay_VERSION_ARCH.deb for the Debian that this runs on: the program
# with its locked dependencies in /opt/shadowrelay, and its systemd unit. `make package`. docs/setup.md "Install".
set -euo pipefail
cd "$(dirname "$0")/.."

version=$(sed -nE 's/^__version__ = "(.*)"$/\1/p' shadowrelay/__init__.py)
python=/usr/bin/python3 # the package runs on Debian's own
series=$($python -c 'import sys; print("%d.%d" % sys.version_info[:2])')
following=$($python -c 'import sys; print("%d.%d" % (sys.version_info[0], sys.version_info[1] + 1))')
architecture=$(dpkg --print-architecture)

# Whoever builds it maintains it: DEBFULLNAME and DEBEMAIL, as Debian's tools have them, else the user of Git, else of this machine.
name=${DEBFULLNAME:-$(git config user.name 2>/dev/null || true)}
address=${DEBEMAIL:-$(git config user.email 2>/dev/null || true)}
maintainer="${name:-$(id -un)} <${address:-$(id -un)@$(hostname -f 2>/dev/null || hostname)}>"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 0755 "$work"
made=$work/made # in the end it is moved to dist: nobody finds half a package there
root=$work/root
mkdir -p "$made" "$root" dist
.venv/bin/hatchling build --target wheel --directory "$made"
wheel=$made/shadowrelay-$version-py3-none-any.whl
sbom=$made/shadowrelay-$version.cdx.json
.venv/bin/python packaging/sbom.py requirements/base.txt "$version" >"$sbom"
place=$root/opt/shadowrelay
mkdir -p "$root/opt"
$python -m venv --without-pip "$place"
install=(.venv/bin/python -m pip --python "$place/bin/python3" install --quiet --disable-pip-version-check --no-input --no-compile)
"${install[@]}" --require-hashes --requirement requirements/base.txt
"${install[@]}" --no-deps "$wheel"

# Programs name the interpreter of the place where they were made. Only one is wanted here.
find "$place/bin" -mindepth 1 ! -name 'python*' -delete
printf '%s\n' '#!/opt/shadowrelay/bin/python3' 'from shadowrelay.__main__ import main' 'main()' >"$place/bin/shadowrelay"
chmod 0755 "$place/bin/shadowrelay"
printf '%s\n' 'home = /usr/bin' 'include-system-site-packages = false' "version = $series" >"$place/pyvenv.cfg"
$python -m compileall -q -s "$root" -p / "$place/lib" # with the names that the files will have

documents=$root/usr/share/doc/shadowrelay
share=$root/usr/share/shadowrelay # what a report needs besides: docs/setup.md "Reports where there is no checkout"
mkdir -p "$root/usr/bin" "$root/lib/systemd/system" "$documents/examples" "$share" "$root/DEBIAN"
ln -s /opt/shadowrelay/bin/shadowrelay "$root/usr/bin/shadowrelay"
cp shadowrelay/settings/shadowrelay.service "$root/lib/systemd/system/"
cp LICENSE "$documents/copyright"
cp CHANGELOG.md README.md "$documents/"
cp "$sbom" "$documents/sbom.cdx.json"
cp -r docs "$documents/"
cp -r configs/prometheus configs/grafana configs/systemd configs/mtas configs/example.toml "$documents/examples/"
cp "$wheel" requirements/spark.txt requirements/build.txt "$share/"
PYTHONPATH=. .venv/bin/python packaging/texts.py "$root"
chmod -R u=rwX,go=rX "$root"
install -m 0755 packaging/postinst packaging/prerm packaging/postrm "$root/DEBIAN/"
cat >"$root/DEBIAN/control" <<END
Package: shadowrelay
Version: $version
Architecture: $architecture
Maintainer: $maintainer
Section: mail
Priority: optional
Depends: python3 (>= $series~), python3 (<< $following~), passwd
Installed-Size: $(du -sk --exclude=DEBIAN "$root" | cut -f1)
Description: SMTP relay with shadow redundancy
 Says 250 to a message only when a second server holds a synced copy of it.
 If a server is lost, the one that holds the copy delivers the mail.
END
dpkg-deb --root-owner-group --build "$root" "$made/shadowrelay_${version}_$architecture.deb" >/dev/null
for file in "$made"/*; do
    cp "$file" "dist/.${file##*/}.new" # another file system than that of $work: only a rename within one is whole
    mv "dist/.${file##*/}.new" "dist/${file##*/}"
    printf '%s\n' "$PWD/dist/${file##*/}"
done
