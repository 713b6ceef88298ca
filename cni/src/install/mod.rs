//! `cni install DIR` and `cni uninstall DIR`: puts the program into a node's folder of plugins, as the DaemonSet of the cluster network addons
//! operator does with the reference's.
//!
//! `cnv-bridge` and `cnv-tuning` are always this program, one file under both names. `bridge` and `tuning` become links to
//! them only where those names are free: other plugins stay. Every file appears whole, under its name, by a rename: a
//! runtime may start it at any time. Removed are only files with this program's content, and links to them.

mod apply;
mod plan;

use std::path::Path;

use serde_json::json;

use crate::error::Error;
use crate::format::Format;
use apply::Outcome;

/// The links made without `--all`.
const USUAL: [&str; 2] = ["bridge", "tuning"];

/// Installs into `folder`; the report, and true.
///
/// # Errors
/// [`crate::Kind::Io`] naming the file. What was put in its place before stays: each is whole.
pub(crate) fn run(folder: &Path, all: bool, format: Format) -> Result<(String, bool), Error> {
    let plugins: &[&str] = if all { &crate::PLUGINS } else { &USUAL };
    let installed = apply::install(folder, plugins)?;
    Ok((report(folder, &installed, format), true))
}

/// Removes this program from `folder`; the report, and true.
///
/// # Errors
/// [`crate::Kind::Io`] naming the file.
pub(crate) fn undo(folder: &Path, format: Format) -> Result<(String, bool), Error> {
    let removed = apply::uninstall(folder)?;
    Ok((report(folder, &removed, format), true))
}

fn report(folder: &Path, outcome: &Outcome, format: Format) -> String {
    match format {
        Format::Text => {
            let mut text = format!(
                "ferrovirt {} sha256:{} in {}\n",
                env!("CARGO_PKG_VERSION"),
                outcome.checksum,
                folder.display()
            );
            for file in &outcome.files {
                text.push_str(&format!("  {:<16} {:<14} {}\n", file.name, file.what.as_str(), file.version));
            }
            text
        }
        Format::Json => {
            let files: Vec<_> = outcome
                .files
                .iter()
                .map(|file| json!({"name": file.name, "result": file.what.as_str(), "version": file.version}))
                .collect();
            let report = json!({
                "version": env!("CARGO_PKG_VERSION"),
                "sha256": outcome.checksum,
                "folder": folder.display().to_string(),
                "files": files,
            });
            format!("{report:#}\n")
        }
    }
}
