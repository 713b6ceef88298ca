//! `virt-node install-service`: the daemon as a unit of systemd.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::error::{Error, Kind};

const NAME: &str = "virt-node.service";
const UNIT: &str = "/etc/systemd/system/virt-node.service";

/// A text as units write it: one quoted word, in which systemd replaces no specifier.
fn word(text: &str) -> String {
    let mut word = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => word.extend(['\\', c]),
            '%' => word.extend([c, c]),
            c => word.push(c),
        }
    }
    word + "\""
}

/// The unit for a program, a state folder and what else is typed.
fn unit(program: &str, state: &str, words: &[String]) -> String {
    // Only there variables are filled in.
    let arguments = ["serve", "--state", state].into_iter().chain(words.iter().map(String::as_str));
    let arguments: Vec<String> = arguments.map(|one| word(one).replace('$', "$$")).collect();
    format!(
        "\
[Unit]
Description=Virtual machines of this machine (ferrovirt)
Wants=network-online.target
After=network-online.target local-fs.target
RequiresMountsFor={state}

[Service]
ExecStart={program} {arguments}
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
        program = word(program).replace('$', "$$"),
        arguments = arguments.join(" "),
    )
}

/// A path as a line of a unit can hold it.
fn unit_path(path: &Path) -> Result<&str, Error> {
    let text = path.to_str().filter(|text| !text.contains(char::is_control));
    let refused =
        || format!("{}: systemd takes no path that is not UTF-8, or has control characters", path.display());
    text.ok_or_else(|| Error::new(Kind::Usage, refused()))
}

/// Writes the unit, and has systemd run it now and at every boot. `words` are further arguments of `serve`.
///
/// # Errors
/// It cannot be written, or systemd refuses it.
pub(crate) fn install(state: &Path, words: &[String], print: bool) -> Result<String, Error> {
    let failed = |doing: &str, path: &Path| {
        let text = format!("cannot {doing} {}", path.display());
        move |error| Error::with(Kind::System, text, error)
    };
    let program = std::env::current_exe()
        .map_err(|error| Error::with(Kind::System, "cannot determine the path of this program", error))?;
    // systemd runs it elsewhere.
    let state = std::path::absolute(state).map_err(failed("resolve the path", state))?;
    let text = unit(unit_path(&program)?, unit_path(&state)?, words);
    if print {
        return Ok(text);
    }
    let path = Path::new(UNIT);
    fs::create_dir_all(&state).map_err(failed("create", &state))?;
    let new = fs::read(path).ok().is_none_or(|before| before != text.as_bytes());
    if new {
        dir::replace(path, text.as_bytes(), 0o644).map_err(|error| failed("write", path)(error.into()))?;
    }
    systemctl(&["daemon-reload"])?;
    systemctl(&["enable", NAME])?;
    // One that runs with another unit is another one then.
    systemctl(&[if new { "restart" } else { "start" }, NAME])?;
    Ok(format!(
        "{UNIT} {}\n",
        if new { "was written, and is started" } else { "was there already, and runs" }
    ))
}

fn systemctl(words: &[&str]) -> Result<(), Error> {
    let output = Command::new("systemctl").args(words).output();
    let output = output.map_err(|error| Error::with(Kind::System, "systemctl cannot be run", error))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(Error::new(Kind::System, format!("systemctl {}: {said}", words.join(" "))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unit_names_the_program_and_the_state() {
        let text = unit("/usr/bin/virt-node", "/srv/100% guests", &["--accelerator=kvm".to_owned()]);
        let line = "ExecStart=\"/usr/bin/virt-node\" \"serve\" \"--state\" \"/srv/100%% guests\" \"--accelerator=kvm\"\n";
        assert!(text.contains(line), "{text}");
        assert!(text.contains("KillMode=process\n"));
    }
}
