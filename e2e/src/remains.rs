//! Remains of pods on a cluster's node, as lines: links, routes, rules, addresses, mounts, volumes, processes; and files in
//! directories of the node that programs of pods write to.
//!
//! Not here: remains of a cluster on the machine ([`crate::leftovers`]).

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::Cluster;
use crate::node::POOL;

/// Directories in which pods leave files for programs of the node: network plugins, and sockets that the kubelet looks for.
const SHARED: [&str; 5] = [
    "/opt/cni/bin",
    "/etc/cni/net.d",
    "/var/lib/kubelet/plugins",
    "/var/lib/kubelet/plugins_registry",
    "/var/lib/kubelet/device-plugins",
];
/// The kubelet's own record of the devices that pods have.
const CHECKPOINT: &str = "kubelet_internal_checkpoint";

impl Cluster {
    /// The node's network: links, routes, rules without counters, named namespaces, addresses and results of CNI plugins.
    ///
    /// # Errors
    /// When the node is gone, or a program fails on it.
    pub fn network(&self) -> Result<BTreeSet<String>> {
        let mut lines = BTreeSet::new();
        let mut add =
            |kind: &str, text: &str| lines.extend(text.lines().map(|line| format!("{kind}: {line}")));
        let links: Vec<Value> = serde_json::from_str(&self.shown("ip", &["-json", "link"])?)?;
        for link in links {
            add("link", &format!("{} {}", link["ifname"], link["master"]));
        }
        // A bridge without ports carries nothing.
        add("route", &self.shown("ip", &["route", "show", "table", "all"])?.replace(" linkdown", ""));
        add("rule", &without_proxy(&self.shown("nft", &["--stateless", "list", "ruleset"])?));
        add("namespace", &self.shown("ip", &["netns"])?);
        for folder in ["networks/pods", "results"] {
            for name in names(&self.place().path("var-lib/cni").join(folder))? {
                add(folder, &name);
            }
        }
        Ok(lines)
    }

    /// The node's network, mounts, pods of the kubelet, volumes of the pool, and command lines, as far as they have one of
    /// these words: uids and addresses of pods, names of volumes.
    ///
    /// # Errors
    /// When the node is gone, or a program fails on it.
    pub fn remains(&self, words: &[String]) -> Result<Vec<String>> {
        let mut lines = self.network()?;
        let mut add =
            |kind: &str, text: &str| lines.extend(text.lines().map(|line| format!("{kind}: {line}")));
        // Programs on the node are in no process namespace that its /proc shows: `self` is not there.
        add("mount", &self.shown("cat", &["/proc/1/mounts"])?);
        for folder in ["/var/lib/kubelet/pods", POOL] {
            for name in names(&self.node_path(folder)?)? {
                add(folder, &name);
            }
        }
        let all = "for one in /proc/[0-9]*/cmdline; do tr '\\0' ' ' < $one; echo; done 2> /dev/null";
        add("process", &self.shown("sh", &["-c", all])?);
        Ok(lines.into_iter().filter(|line| words.iter().any(|word| has(line, word))).collect())
    }

    /// Files, links and sockets, by their paths, in the directories that pods share with programs of the node.
    ///
    /// # Errors
    /// When the node is gone, or a directory cannot be read.
    pub fn shared_files(&self) -> Result<BTreeSet<String>> {
        // The kubelet makes some of them with the first pod or plugin.
        let existing = |path: &&str| self.node_path(path).is_ok_and(|path| path.is_dir());
        let mut arguments: Vec<&str> = SHARED.into_iter().filter(existing).collect();
        arguments.extend(["!", "-type", "d"]);
        let found = self.shown("find", &arguments)?;
        Ok(found.lines().filter(|path| !path.ends_with(CHECKPOINT)).map(str::to_owned).collect())
    }

    /// Output of a program on the node.
    fn shown(&self, program: &str, arguments: &[&str]) -> Result<String> {
        let run = self.on_node(program)?.args(arguments).output()?;
        ensure!(run.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&run.stderr));
        Ok(String::from_utf8(run.stdout)?)
    }
}

/// Whether a line has a word that does not go on: 10.244.0.1 is not in 10.244.0.12.
fn has(line: &str, word: &str) -> bool {
    let goes_on = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    line.match_indices(word).any(|(at, _)| {
        let bytes = line.as_bytes();
        !goes_on(bytes.get(at + word.len()))
            && !goes_on(at.checked_sub(1).and_then(|before| bytes.get(before)))
    })
}

/// Rules without the tables of kube-proxy: it deletes the chains of a Service some time after the Service.
fn without_proxy(rules: &str) -> String {
    let mut inside = false;
    let ours = |line: &&str| {
        inside |= line.starts_with("table ") && line.contains(" kube-proxy ");
        let shown = !inside;
        inside &= *line != "}";
        shown
    };
    rules.lines().filter(ours).map(|line| format!("{line}\n")).collect()
}

fn names(folder: &std::path::Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_of_kube_proxy_do_not_count() {
        let rules =
            "table ip kube-proxy {\n\tchain endpoint-A {\n\t}\n}\ntable ip cni {\n\tchain a {\n\t}\n}\n";
        assert_eq!(without_proxy(rules), "table ip cni {\n\tchain a {\n\t}\n}\n");
    }

    #[test]
    fn a_word_is_whole() {
        assert!(
            has("rule: ip saddr 10.244.0.1 masquerade", "10.244.0.1")
                && has("networks/pods: 10.244.0.1", "10.244.0.1")
        );
        assert!(!has("ip saddr 10.244.0.12", "10.244.0.1") && !has("110.244.0.1", "10.244.0.1"));
    }
}
