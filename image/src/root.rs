//! The lowest layer: a small Debian made by mmdebstrap, with `sh`, the C library, the packages that the programs above it
//! need, and uid 107 by name.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::layer::{self, EPOCH, Layer, sha256};

/// The Debian release of the image. The programs are built on the same one, or need an older C library.
const SUITE: &str = "bookworm";

/// Content of a lowest layer beyond the packages of mmdebstrap's `minbase`.
#[derive(Clone, Copy, Debug)]
pub struct Root {
    /// Debian packages, separated by commas.
    pub packages: &'static str,
    /// Whether `mkfs.xfs` is there.
    pub mkfs_xfs: bool,
}

/// mkfs.xfs without the rest of its package, which brings Python; the libraries it needs are packages above.
const MKFS_XFS: &str = r#"--customize-hook=cd "$(mktemp -d)" && APT_CONFIG="$MMDEBSTRAP_APT_CONFIG" apt-get -q download xfsprogs && dpkg-deb --fsys-tarfile xfsprogs_*.deb | tar -C "$1" -x ./sbin/mkfs.xfs && rm -r "$PWD""#;

/// Files that no program reads and that reveal when the root was made.
const DROPPED: &[&str] = &[
    "/usr/share/doc",
    "/usr/share/info",
    "/usr/share/locale",
    "/usr/share/man",
    "/var/cache",
    "/var/lib/apt",
    "/var/log",
];

/// The packed layer, in `work`. With `cache` the packages are fetched once.
pub(crate) fn layer(root: &Root, cache: Option<&Path>, work: &Path) -> Result<Layer> {
    let arguments = arguments(root);
    let Some(cache) = cache else {
        let tar = work.join("root.tar");
        bootstrap(&arguments, &tar)?;
        return layer::from_tar(File::open(tar)?, &work.join("root"));
    };
    fs::create_dir_all(cache).with_context(|| format!("cannot create {}", cache.display()))?;
    let tar = kept(cache, &arguments);
    if !tar.exists() {
        // Two builds at once do it twice; the cache has all of it or nothing.
        let beside = tempfile::tempdir_in(cache)?;
        let partial = beside.path().join("root.tar");
        bootstrap(&arguments, &partial)?;
        fs::rename(&partial, &tar)?;
    }
    layer::from_tar(File::open(tar)?, &work.join("root"))
}

/// Named by a hash of its inputs, so that a change of them builds another one.
fn kept(cache: &Path, arguments: &[String]) -> PathBuf {
    let key = sha256(arguments.join("\n").as_bytes());
    cache.join(format!("root-{SUITE}-{}.tar", &key[..12]))
}

fn arguments(root: &Root) -> Vec<String> {
    let mut arguments =
        vec!["--variant=minbase".to_owned(), format!("--include={}", root.packages), "--format=tar".into()];
    if root.mkfs_xfs {
        arguments.push(MKFS_XFS.to_owned());
    }
    arguments.extend([
        // The name by which file systems and `ls` know the owner of every disk image.
        r#"--customize-hook=echo qemu:x:107:107:qemu:/:/usr/sbin/nologin >>"$1/etc/passwd""#.into(),
        r#"--customize-hook=echo qemu:x:107: >>"$1/etc/group""#.into(),
        r#"--customize-hook=rm -f "$1/etc/hostname" "$1/etc/resolv.conf" "$1/etc/machine-id""#.into(),
    ]);
    let dropped: Vec<_> = DROPPED.iter().map(|path| format!(r#""$1{path}""#)).collect();
    arguments.push(format!(
        r#"--customize-hook=for path in {}; do rm -rf "$path"/* "$path"/.[!.]*; done"#,
        dropped.join(" ")
    ));
    arguments.push(SUITE.into());
    arguments
}

fn bootstrap(arguments: &[String], tar: &Path) -> Result<()> {
    let run = Command::new("mmdebstrap")
        .arg("--quiet")
        .args(arguments)
        .arg(tar)
        // mmdebstrap sets no file's time after this one, and packages write it where they would write today.
        .env("SOURCE_DATE_EPOCH", EPOCH.to_string())
        .env("LC_ALL", "C.UTF-8")
        .stdin(Stdio::null())
        .output()
        .context("cannot run mmdebstrap; `make deps` installs it")?;
    if !run.status.success() {
        bail!("mmdebstrap {}: {}", run.status, String::from_utf8_lossy(&run.stderr));
    }
    Ok(())
}
