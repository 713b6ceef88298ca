//! Options as tables in pages: between a line `<!-- options: PROGRAM [SUBCOMMAND] -->` and a line `<!-- end of options -->`.

use std::fmt::Write as _;

use clap::{Arg, ArgAction, Command};

use crate::programs;

const BEGIN: &str = "<!-- options: ";
const END: &str = "<!-- end of options -->";

/// A page with its tables replaced by those of the programs as they are; the names that are no command, if any.
pub fn filled(page: &str) -> (String, Vec<String>) {
    let (mut text, mut unknown) = (String::new(), Vec::new());
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        let _ = writeln!(text, "{line}");
        let Some(words) = line.strip_prefix(BEGIN).and_then(|rest| rest.strip_suffix(" -->")) else {
            continue;
        };
        match programs::find(words) {
            Some(command) => text.push_str(&table(&command)),
            None => unknown.push(words.to_owned()),
        }
        for line in lines.by_ref() {
            if line == END {
                let _ = writeln!(text, "{line}");
                break;
            }
        }
    }
    (text, unknown)
}

/// The names of the commands that a page has tables of.
pub fn commands_of(page: &str) -> Vec<&str> {
    page.lines().filter_map(|line| line.strip_prefix(BEGIN)?.strip_suffix(" -->")).collect()
}

/// The subcommands and the options of one command.
pub fn table(command: &Command) -> String {
    let mut text = String::new();
    let subcommands: Vec<&Command> =
        command.get_subcommands().filter(|one| !one.is_hide_set() && one.get_name() != "help").collect();
    if !subcommands.is_empty() {
        text.push_str("| command | |\n|---|---|\n");
        for one in subcommands {
            let about = one.get_about().map(ToString::to_string).unwrap_or_default();
            let _ = writeln!(text, "| `{}` | {} |", one.get_name(), cell(&about));
        }
        text.push('\n');
    }
    let shown = |arg: &&Arg| !arg.is_hide_set() && !["help", "version"].contains(&arg.get_id().as_str());
    let options: Vec<&Arg> = command.get_arguments().filter(shown).collect();
    if options.is_empty() {
        return text;
    }
    text.push_str("| option | environment | default | |\n|---|---|---|---|\n");
    let mut heading = None;
    for arg in options {
        if arg.get_help_heading() != heading {
            heading = arg.get_help_heading();
            let _ = writeln!(text, "| **{}** | | | |", heading.unwrap_or("Other options"));
        }
        let environment = arg.get_env().and_then(|name| name.to_str()).map(|name| format!("`{name}`"));
        let default: Vec<_> = arg.get_default_values().iter().filter_map(|value| value.to_str()).collect();
        let default = Some(default.join(", ")).filter(|text| {
            !text.is_empty() && !arg.is_hide_default_value_set() && arg.get_action().takes_values()
        });
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} |",
            spelled(arg),
            environment.unwrap_or_default(),
            default.map(|text| format!("`{}`", cell(&text))).unwrap_or_default(),
            cell(&help),
        );
    }
    text
}

/// An option as it is typed, with the name of its value.
fn spelled(arg: &Arg) -> String {
    let names: Vec<String> = arg
        .get_short()
        .map(|short| format!("-{short}"))
        .into_iter()
        .chain(arg.get_long().map(|long| format!("--{long}")))
        .collect();
    let values = arg.get_value_names().unwrap_or_default();
    let value = values.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(" ");
    let takes = matches!(arg.get_action(), ArgAction::Set | ArgAction::Append);
    match (names.is_empty(), takes) {
        (true, _) => format!("`{}`", cell(&value)),
        (false, true) if !value.is_empty() => format!("`{} {}`", names.join(", "), cell(&value)),
        (false, _) => format!("`{}`", names.join(", ")),
    }
}

/// A text in one cell of a table.
fn cell(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}
