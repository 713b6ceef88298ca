//! Manual pages: one for each program and each of its subcommands, in section 1.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

use crate::programs::{self, Plain};

/// Writes all pages below `man/man1` of `directory`.
///
/// # Errors
/// A file cannot be written.
pub fn write(directory: &Path) -> Result<()> {
    let pages = directory.join("man/man1");
    fs::create_dir_all(&pages).with_context(|| format!("cannot create {}", pages.display()))?;
    for command in programs::commands() {
        let name = command.get_name().to_owned();
        clap_mangen::generate_to(command, &pages)
            .with_context(|| format!("cannot write the pages of {name} to {}", pages.display()))?;
    }
    for program in programs::plain() {
        let file = pages.join(format!("{}.1", program.name));
        fs::write(&file, page(&program)).with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}

/// The page of a program without clap: its help text as it is.
fn page(program: &Plain) -> String {
    let mut page = String::new();
    let version = env!("CARGO_PKG_VERSION");
    let _ = writeln!(page, ".TH {} 1 \"\" \"{} {version}\"", program.name, program.name);
    let _ = writeln!(page, ".SH NAME\n{} \\- {}", escaped(program.name), escaped(program.about));
    let _ = writeln!(page, ".SH DESCRIPTION\n.nf");
    for line in program.help.lines() {
        let _ = writeln!(page, "{}", escaped(line));
    }
    let _ = writeln!(page, ".fi");
    page
}

/// A line of text for roff: backslashes, hyphens and leading control characters are escaped.
pub fn escaped(line: &str) -> String {
    let line = line.replace('\\', "\\e").replace('-', "\\-");
    if line.starts_with(['.', '\'']) { format!("\\&{line}") } else { line }
}
