//! The programs and their command lines.

use clap::Command;

/// Programs that are started by typing: they have completions as well.
const TYPED: &[&str] = &["importer", "kubectl-virt", "operator", "uploadproxy", "virt-launcher", "virt-node"];

/// A program without clap: its page is its help text.
#[derive(Clone, Copy, Debug)]
pub struct Plain {
    /// Name of the program.
    pub name: &'static str,
    /// One line about it.
    pub about: &'static str,
    /// The text of `--help`.
    pub help: &'static str,
}

/// The command lines of all programs that use clap.
pub fn commands() -> Vec<Command> {
    vec![
        cdi_source_update_poller::command(),
        clone_source::command(),
        hpp_csi::command(),
        importer::command(),
        macpool::command(),
        operator::command(),
        uploadproxy::command(),
        uploadserver::command(),
        virt_agent::command(),
        virt_client::command(),
        virt_launcher::command(),
        virt_node::command(),
    ]
}

/// The programs that read their arguments themselves.
pub fn plain() -> [Plain; 1] {
    [Plain { name: "cni", about: "network plugins for pods and virtual machines", help: cni::HELP }]
}

/// Whether a program has completions.
pub fn is_typed(command: &Command) -> bool {
    TYPED.contains(&command.get_name())
}

/// The command of a line of words, such as `virt-node serve`; `None` when there is no such command.
pub fn find(words: &str) -> Option<Command> {
    let mut words = words.split_whitespace();
    let name = words.next()?;
    let mut command = commands().into_iter().find(|command| command.get_name() == name)?;
    command.build();
    for word in words {
        command = command.find_subcommand(word)?.clone();
    }
    Some(command)
}
