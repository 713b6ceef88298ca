//! Completion scripts at the paths where the shells look for them.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use clap_complete::{Shell, generate};

use crate::programs;

/// The directory of a shell's scripts below the one for shared data, and what a file's name has before and after the program's.
const SHELLS: [(Shell, &str, &str, &str); 3] = [
    (Shell::Bash, "bash-completion/completions", "", ""),
    (Shell::Zsh, "zsh/site-functions", "_", ""),
    (Shell::Fish, "fish/vendor_completions.d", "", ".fish"),
];

/// Writes the scripts of all programs that are typed below `directory`.
///
/// # Errors
/// A file cannot be written.
pub fn write(directory: &Path) -> Result<()> {
    for (shell, folder, before, after) in SHELLS {
        let folder = directory.join(folder);
        fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        for mut command in programs::commands().into_iter().filter(programs::is_typed) {
            let name = command.get_name().to_owned();
            let mut script = Vec::new();
            generate(shell, &mut command, &name, &mut script);
            let file = folder.join(format!("{before}{name}{after}"));
            fs::write(&file, script).with_context(|| format!("cannot write {}", file.display()))?;
        }
    }
    Ok(())
}
