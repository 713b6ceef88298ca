//! `expand`: a machine with its instance type and preference written out.

use std::path::Path;

use serde_json::Value;

use crate::error::{Error, Kind, Result, failed};
use crate::output::{Document, render};
use crate::site::{Site, document};
use crate::target::Target;

/// Longest file.
const FILE_MAX: u64 = 4 << 20;

/// Expands a machine of the cluster.
///
/// # Errors
/// The API server refuses it.
pub(crate) async fn of_cluster(site: &Site, name: &str, format: Document) -> Result<String> {
    let path = site.verb(&Target::machine(name), "expand-spec")?;
    let machine = site.read(&path).await;
    render(&machine.map_err(failed(format!("error expanding VirtualMachine - {name}")))?, format)
}

/// Expands a machine of a file; `-` is standard input.
///
/// # Errors
/// The file holds no document, or the API server refuses it.
pub(crate) async fn of_file(site: &Site, file: &Path, format: Document) -> Result<String> {
    let machine = read(file)?;
    let path = site.namespaced_verb("expand-vm-spec")?;
    let answer = site.put(&path, Some(&machine)).await;
    let answer = answer.map_err(failed(format!("error expanding VirtualMachine of {}", file.display())))?;
    render(&document(&answer)?, format)
}

fn read(file: &Path) -> Result<Value> {
    let shown = file.display();
    let text = dir::read_input(file, FILE_MAX)
        .map_err(|error| Error::with(Kind::System, format!("cannot read {shown}"), error))?;
    let text = String::from_utf8(text)
        .map_err(|error| Error::with(Kind::Usage, format!("{shown} is not UTF-8"), error))?;
    serde_saphyr::from_str(&text).map_err(|error| {
        Error::new(
            Kind::Usage,
            format!("{shown} is not one YAML or JSON document: {}", error.without_snippet()),
        )
    })
}
