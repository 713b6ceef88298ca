//! What an attachment with addresses leaves behind when its plugin is killed, or the kernel refuses it something, at any
//! of its system calls: nothing, once DEL or GC has run. strace does both, call by call.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod support;

use std::path::PathBuf;

use serde_json::{Value, json};
use support::{Answer, Call, Host, Namespace, bridge, count, with};

struct Scene {
    host: Host,
    pod: Namespace,
    config: Value,
}

impl Scene {
    fn new() -> Self {
        let (host, pod) = (Host::new(), Namespace::new());
        let ipam = json!({
            "type": "host-local",
            "dataDir": host.folder.path().join("networks"),
            "ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "fd00::/64"}]],
        });
        let config = with(&with(&bridge(), "isDefaultGateway", json!(true)), "ipam", ipam);
        Self { host, pod, config }
    }

    fn call(&self, verb: &str) -> Call {
        self.host.call(verb, &self.pod, &self.config)
    }

    fn reservations(&self) -> Vec<String> {
        let Ok(folder) = std::fs::read_dir(self.host.folder.path().join("networks/net")) else {
            return Vec::new();
        };
        folder
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name != "lock" && !name.starts_with("last_reserved_ip."))
            .collect()
    }

    /// Nothing of the attachment is there. The bridge stays, as it always does.
    fn expect_nothing(&self, what: &str) {
        assert!(self.pod.names().is_empty(), "{what}: {:?}", self.pod.names());
        let links = self.host.namespace.names();
        assert!(links.iter().all(|name| name == "br0"), "{what}: {links:?}");
        assert!(self.reservations().is_empty(), "{what}: {:?}", self.reservations());
    }

    /// The call under strace; none when the plugin was killed.
    fn trace(&self, verb: &str, words: &[String]) -> Option<Answer> {
        let call = self.call(verb);
        let mut command = self.host.namespace.command("strace");
        command.arg("-o").arg(self.report()).args(words).arg(&call.plugin);
        let answer = self.host.run(command, &call);
        let report = std::fs::read_to_string(self.report()).unwrap();
        (!report.contains("killed by SIGKILL")).then_some(answer)
    }

    fn report(&self) -> PathBuf {
        self.host.folder.path().join("report")
    }

    /// The system calls that `verb` makes, in their order.
    fn calls(&self, verb: &str) -> Vec<String> {
        self.trace(verb, &[]).unwrap().result();
        let report = std::fs::read_to_string(self.report()).unwrap();
        let name = |line: &str| line.split_once('(').map(|(name, _)| name.to_owned());
        // The first is the one that starts the program, the last the one that ends it.
        let names: Vec<String> = report.lines().filter_map(name).collect();
        names[1..names.len() - 1].to_vec()
    }
}

/// Each call as strace counts it: its name, and how often it was made by then.
fn numbered(calls: &[String]) -> Vec<(String, usize)> {
    let mut seen = std::collections::BTreeMap::<&str, usize>::new();
    calls
        .iter()
        .map(|name| {
            let count = seen.entry(name).or_default();
            *count += 1;
            (name.clone(), *count)
        })
        .collect()
}

/// Every so many calls, and another one first each time, so that all are met in a few runs; with FERROVIRT_SOAK=1 all at
/// once.
fn some<T>(all: Vec<T>, sample: usize) -> Vec<T> {
    let step = count(all.len().div_ceil(sample).max(1), 1);
    let first = usize::try_from(std::process::id()).unwrap() % step;
    all.into_iter().skip(first).step_by(step).collect()
}

fn calls_of(verb: &str) -> Vec<(String, usize)> {
    let scene = Scene::new();
    let add = scene.calls("ADD");
    let calls = if verb == "DEL" { scene.calls("DEL") } else { add };
    // Before this one the program is being loaded.
    let start = calls.iter().position(|name| name == "poll").expect("where Rust's runtime starts");
    numbered(&calls).split_off(start + 1)
}

#[test]
fn killed_at_any_call() {
    for verb in ["ADD", "DEL"] {
        let mut killed = 0;
        let calls = some(calls_of(verb), 20);
        println!("{verb} is killed at {} calls", calls.len());
        for (name, number) in calls {
            let scene = Scene::new();
            if verb == "DEL" {
                scene.host.make(&scene.call("ADD")).result();
            }
            let inject = format!("inject={name}:signal=SIGKILL:when={number}");
            killed += usize::from(scene.trace(verb, &["-e".to_owned(), inject.clone()]).is_none());
            if number % 2 == 0 {
                scene.host.make(&scene.call("DEL")).result();
            } else {
                let valid = with(&scene.config, "cni.dev/valid-attachments", json!([]));
                let call = Call { config: valid.to_string(), ..scene.call("GC") };
                scene.host.make(&call).result();
            }
            scene.expect_nothing(&format!("{verb} {inject}"));
            // And the next one works.
            scene.host.make(&scene.call("ADD")).result();
        }
        assert!(killed > 0);
    }
}

/// Memory and what the runtime asks for at its start are left out: without them nothing of ours runs.
#[test]
fn refused_at_any_call() {
    const LEFT_OUT: [&str; 14] = [
        "mmap",
        "munmap",
        "mremap",
        "mprotect",
        "brk",
        "sigaltstack",
        "rt_sigaction",
        "arch_prctl",
        "set_tid_address",
        "set_robust_list",
        "rseq",
        "prlimit64",
        "rt_sigprocmask",
        "close",
    ];
    for verb in ["ADD", "DEL"] {
        let mut failed = 0;
        let calls = calls_of(verb).into_iter().filter(|(name, _)| !LEFT_OUT.contains(&name.as_str()));
        for (name, number) in some(calls.collect(), 20) {
            let scene = Scene::new();
            if verb == "DEL" {
                scene.host.make(&scene.call("ADD")).result();
            }
            let inject = format!("inject={name}:error=EIO:when={number}");
            let answer = scene.trace(verb, &["-e".to_owned(), inject.clone()]).expect("it is not killed");
            if !answer.success {
                failed += 1;
                assert!(answer.document.is_some() || name == "write", "{verb} {inject}: {answer:?}");
            }
            scene.host.make(&scene.call("DEL")).result();
            scene.expect_nothing(&format!("{verb} {inject}"));
        }
        println!("{verb} failed at {failed} calls");
        assert!(failed > 0);
    }
}
