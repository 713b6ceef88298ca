//! Output of the commands: formats, documents, and the two places a line can go.

use std::io::{self, Write};

use clap::ValueEnum;
use serde_json::Value;

use crate::error::{Error, Kind, Result};

/// How a report is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people
    Text,
    /// For programs
    Json,
}

/// How an object is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Document {
    /// YAML
    Yaml,
    /// JSON
    Json,
}

/// Renders a document in the requested format.
pub(crate) fn render(object: &Value, format: Document) -> Result<String> {
    match format {
        Document::Json => Ok(format!("{object:#}\n")),
        Document::Yaml => serde_saphyr::to_string(object)
            .map_err(|error| Error::with(Kind::System, "the document cannot be written as YAML", error)),
    }
}

/// Writes to standard output at once.
pub(crate) fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|error| Error::with(Kind::System, "the answer cannot be written", error))
}

/// A line for the person, on standard error: standard output belongs to the guest.
pub(crate) fn say(text: &str) {
    drop(writeln!(io::stderr(), "{text}"));
}
