//! `virt-node install-service`: the daemon as a unit of systemd.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::error::{Error, Kind};
use crate::launcher::replace;

const UNIT: &str = "/etc/systemd/system/virt-node.service";

/// A path as units write it: one word, in which nothing stands for something else.
fn word(path: &Path) -> String {
    let mut word = String::from('"');
    for c in path.to_string_lossy().chars() {
        match c {
            '"' | '\\' => word.extend(['\\', c]),
            '%' => word.extend([c, c]),
            c => word.push(c),
        }
    }
    word + "\""
}

/// The unit for a program and a state folder.
fn unit(program: &Path, state: &Path) -> String {
    format!(
        "\
[Unit]
Description=Virtual machines of this machine (ferrovirt)
Wants=network-online.target
After=network-online.target local-fs.target
RequiresMountsFor={state}

[Service]
ExecStart={program} serve --state {argument}
Restart=always
RestartSec=1
# Guests and the volumes' driver go on without the daemon; when the machine is shut down, it ends them with their grace.
KillMode=process
TimeoutStopSec=infinity
Delegate=yes
LimitNOFILE=65536
TasksMax=infinity

[Install]
WantedBy=multi-user.target
",
        state = word(state),
        // Only there variables are filled in.
        program = word(program).replace('$', "$$"),
        argument = word(state).replace('$', "$$"),
    )
}

/// Writes the unit, and has systemd start it now and at every boot.
pub(crate) fn install(state: &Path, print: bool) -> Result<String, Error> {
    let failed = |error| Error::with(Kind::System, UNIT, error);
    let program = std::env::current_exe().map_err(failed)?;
    let text = unit(&program, state);
    if print {
        return Ok(text);
    }
    fs::create_dir_all(state).map_err(failed)?;
    replace(Path::new(UNIT), text.as_bytes()).map_err(failed)?;
    for words in [&["daemon-reload"][..], &["enable", "--now", "virt-node.service"]] {
        let output = Command::new("systemctl").args(words).output();
        let output = output.map_err(|error| Error::with(Kind::System, "systemctl cannot be run", error))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(Error::new(Kind::System, format!("systemctl {}: {said}", words.join(" "))));
        }
    }
    Ok(format!("{UNIT} was written and started\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unit_names_the_program_and_the_state() {
        let text = unit(Path::new("/usr/bin/virt-node"), Path::new("/srv/100% guests"));
        assert!(
            text.contains("ExecStart=\"/usr/bin/virt-node\" serve --state \"/srv/100%% guests\"\n"),
            "{text}"
        );
        assert!(text.contains("KillMode=process\n"));
    }
}
