//! Whether a command line is for a Kubernetes cluster: by the program's name, the word `cluster`, `--kubeconfig` or
//! `--context`. Not here: the commands ([`virt_client`]).

use std::ffi::{OsStr, OsString};
use std::path::Path;

use virt_client::Invocation;

/// The program's name as kubectl's plugin.
const PLUGIN: &str = "kubectl-virt";
/// The word that chooses the cluster.
const WORD: &str = "cluster";
/// Flags that choose it.
const FLAGS: [&str; 2] = ["--kubeconfig", "--context"];

fn first(arguments: &[OsString]) -> Option<&OsStr> {
    arguments.get(1).map(OsString::as_os_str)
}

/// How the commands for a cluster were chosen, if they were.
pub(crate) fn chosen(arguments: &[OsString]) -> Option<Invocation> {
    let name = arguments.first().and_then(|name| Path::new(name).file_name());
    if name == Some(OsStr::new(PLUGIN)) {
        return Some(Invocation::inside("kubectl virt", &[WORD]));
    }
    let before_end = arguments.iter().skip(1).take_while(|word| *word != "--");
    let mut words = before_end.filter_map(|word| word.to_str());
    let flagged = words.any(|word| {
        FLAGS
            .iter()
            .any(|flag| word.strip_prefix(flag).is_some_and(|rest| rest.is_empty() || rest.starts_with('=')))
    });
    let chosen = flagged || first(arguments) == Some(OsStr::new(WORD));
    chosen.then(|| Invocation::inside("virt-node cluster", &[WORD]))
}

/// The same command line without the word.
pub(crate) fn words(mut arguments: Vec<OsString>) -> Vec<OsString> {
    if first(&arguments) == Some(OsStr::new(WORD)) {
        arguments.remove(1);
    }
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> Vec<OsString> {
        text.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn name_word_or_flag_choose_the_cluster() {
        for text in [
            "/usr/bin/kubectl-virt start a",
            "virt-node cluster start a",
            "virt-node --kubeconfig f start a",
            "virt-node start a --kubeconfig=f",
            "virt-node start a --context c",
        ] {
            assert!(chosen(&line(text)).is_some(), "{text}");
        }
        for text in
            ["virt-node", "virt-node start cluster", "virt-node ssh a -- --context", "virt-node --contexts x"]
        {
            assert!(chosen(&line(text)).is_none(), "{text}");
        }
    }

    #[test]
    fn the_word_is_taken_off() {
        assert_eq!(words(line("virt-node cluster start a")), line("virt-node start a"));
        assert_eq!(words(line("virt-node start cluster")), line("virt-node start cluster"));
        assert_eq!(words(line("kubectl-virt start a")), line("kubectl-virt start a"));
    }
}
