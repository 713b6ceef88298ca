//! How large the programs are: bytes of the release binary, packages in its tree.

use std::{collections::BTreeSet, path::Path, process::Command};

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;

/// The size of a program.
#[derive(Debug, Serialize)]
pub struct Size {
    /// Its package.
    pub package: String,
    /// Bytes of the binary as it ships.
    pub bytes: u64,
    /// Packages it is built from, itself included, without development dependencies.
    pub packages: usize,
}

/// Measures a program.
///
/// # Errors
/// The binary is not there, or cargo fails.
pub fn of(package: &str, binary: &Path) -> Result<Size> {
    let bytes = std::fs::metadata(binary).with_context(|| format!("look at {}", binary.display()))?.len();
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["tree", "--locked", "-p", package, "-e", "normal", "--prefix", "none", "-f", "{p}"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()?;
    ensure!(output.status.success(), "cargo tree: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout)?;
    let packages: BTreeSet<&str> = text.lines().map(|line| line.trim_end_matches(" (*)")).collect();
    Ok(Size { package: package.to_owned(), bytes, packages: packages.len() })
}
