//! Shared by the tests: network namespaces of their own for a host and its pods, and the plugins called as a runtime calls
//! them. Everything made here is removed when it is dropped, also when the test fails.
//!
//! Needs root, `ip` and `nsenter`; a test without them fails.

#![allow(unreachable_pub, reason = "a module of every test file, not a library")]

pub mod addresses;
pub mod place;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Value, json};

/// All versions of the specification.
pub const VERSIONS: [&str; 7] = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

/// Where a node's programs are.
pub const PROGRAMS: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// A network namespace, removed when dropped; its links go with it.
pub struct Namespace {
    name: String,
}

impl Namespace {
    /// A new one with its loopback up.
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("cni-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        run("ip", &["netns", "add", &name]);
        let namespace = Self { name };
        namespace.run("ip", &["link", "set", "lo", "up"]);
        namespace
    }

    /// Its file.
    pub fn path(&self) -> String {
        format!("/run/netns/{}", self.name)
    }

    /// A command that runs inside.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.path())).arg("--").arg(program);
        command
    }

    /// Runs a program inside and expects it to succeed; its standard output.
    pub fn run(&self, program: &str, arguments: &[&str]) -> String {
        finish(self.command(program).args(arguments), program)
    }

    /// `ip` with words separated by spaces.
    pub fn ip(&self, words: &str) -> String {
        self.run("ip", &words.split(' ').collect::<Vec<_>>())
    }

    /// All links with their details, as `ip` describes them.
    pub fn links(&self) -> Vec<Value> {
        serde_json::from_str(&self.run("ip", &["-j", "-d", "link"])).unwrap()
    }

    /// Names of all links but the loopback, sorted.
    pub fn names(&self) -> Vec<String> {
        let name = |link: &Value| link["ifname"].as_str().unwrap().to_owned();
        let mut names: Vec<String> = self.links().iter().map(name).filter(|name| name != "lo").collect();
        names.sort();
        names
    }

    /// The link of a name.
    pub fn link(&self, name: &str) -> Value {
        let links = self.links();
        let found = links.iter().find(|link| link["ifname"] == name);
        found.unwrap_or_else(|| panic!("no link {name} among {:?}", self.names())).clone()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.name]).stderr(Stdio::null()).status();
    }
}

/// A background program of a test, killed when dropped.
pub struct Running(Child);

impl Running {
    /// Starts it.
    pub fn start(command: &mut Command) -> Self {
        Self(command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}")))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a program and expects it to succeed; its standard output.
pub fn run(program: &str, arguments: &[&str]) -> String {
    finish(Command::new(program).args(arguments), program)
}

fn finish(command: &mut Command, program: &str) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{program}: {error}; make deps installs it"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said} (root and make deps are needed)");
    String::from_utf8(output.stdout).unwrap()
}

/// A namespace that plays the node, and a folder with our plugins under their names.
pub struct Host {
    pub namespace: Namespace,
    pub folder: tempfile::TempDir,
}

/// A plugin's answer.
#[derive(Debug)]
pub struct Answer {
    pub success: bool,
    /// The one document on standard output, if there was one.
    pub document: Option<Value>,
    pub stderr: String,
}

impl Answer {
    /// Reads a finished process. Standard output holds one document or nothing.
    pub fn read(output: &Output) -> Self {
        let text = String::from_utf8(output.stdout.clone()).unwrap();
        let document = match text.trim() {
            "" => None,
            text => Some(serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))),
        };
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!stderr.contains("panicked"), "{stderr}");
        Self { success: output.status.success(), document, stderr }
    }

    /// The document of a call that must have succeeded.
    #[track_caller]
    pub fn result(self) -> Value {
        assert!(self.success, "{self:?}");
        self.document.unwrap_or(Value::Null)
    }

    /// Code and words of a call that must have failed, details after the message.
    #[track_caller]
    pub fn error(self) -> (u64, String) {
        assert!(!self.success, "{self:?}");
        let document = self.document.expect("an error document");
        let details = document["details"].as_str().map(|details| format!("; {details}")).unwrap_or_default();
        (document["code"].as_u64().unwrap(), format!("{}{details}", document["msg"].as_str().unwrap()))
    }
}

/// One call, to be changed before it is made.
#[derive(Clone, Debug)]
pub struct Call {
    pub plugin: PathBuf,
    pub verb: String,
    pub container: String,
    pub interface: String,
    pub netns: String,
    pub arguments: String,
    pub path: String,
    /// PATH: where the plugin finds iptables.
    pub programs: String,
    pub config: String,
}

impl Host {
    /// A new node with our plugins.
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let names = ["bandwidth", "bridge", "tuning", "host-local", "static", "loopback", "tap"];
        for name in names.into_iter().flat_map(|name| [name.to_owned(), format!("cnv-{name}")]) {
            std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_cni"), folder.path().join(name)).unwrap();
        }
        Self { namespace: Namespace::new(), folder }
    }

    /// A call of one of our plugins about `net1` of container `c1` in `pod`.
    pub fn call(&self, verb: &str, pod: &Namespace, config: &Value) -> Call {
        let kind = config["type"].as_str().unwrap();
        Call {
            plugin: self.folder.path().join(kind),
            verb: verb.to_owned(),
            container: "c1".to_owned(),
            interface: "net1".to_owned(),
            netns: pod.path(),
            arguments: String::new(),
            path: self.folder.path().display().to_string(),
            programs: PROGRAMS.to_owned(),
            config: config.to_string(),
        }
    }

    /// Makes a call.
    pub fn make(&self, call: &Call) -> Answer {
        self.run(self.namespace.command(&call.plugin), call)
    }

    /// Makes a call by a command that ends with the plugin: strace before it, or another plugin.
    pub fn run(&self, command: Command, call: &Call) -> Answer {
        Answer::read(&self.output(command, call))
    }

    /// The same, for any exit status and output.
    pub fn output(&self, mut command: Command, call: &Call) -> Output {
        command
            .env_clear()
            .env("PATH", &call.programs)
            .env("CNI_COMMAND", &call.verb)
            .env("CNI_CONTAINERID", &call.container)
            .env("CNI_IFNAME", &call.interface)
            .env("CNI_NETNS", &call.netns)
            .env("CNI_ARGS", &call.arguments)
            .env("CNI_PATH", &call.path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // A plugin that refuses early does not read.
        let _ = child.stdin.take().unwrap().write_all(call.config.as_bytes());
        child.wait_with_output().unwrap()
    }

    /// The same call to the Go reference plugin, with the reference's IPAM plugins.
    pub fn reference(&self, call: Call) -> Answer {
        let plugin = peer(call.plugin.file_name().unwrap().to_str().unwrap());
        let path = plugin.parent().unwrap().display().to_string();
        self.make(&Call { plugin, path, ..call })
    }

    /// Where `host-local` keeps its reservations.
    pub fn networks(&self) -> PathBuf {
        self.folder.path().join("networks")
    }

    /// A `bridge` configuration with further keys and addresses out of ranges.
    pub fn with_ranges(&self, ranges: &Value, keys: Value) -> Value {
        let ipam = json!({"type": "host-local", "dataDir": self.networks(), "ranges": ranges});
        with(&bridge_with(keys), "ipam", ipam)
    }

    /// ADD of `net1` in container `c1`.
    pub fn add(&self, pod: &Namespace, config: &Value) -> Answer {
        self.make(&self.call("ADD", pod, config))
    }

    /// DEL of the same.
    pub fn del(&self, pod: &Namespace, config: &Value) -> Answer {
        self.make(&self.call("DEL", pod, config))
    }

    /// CHECK of the same, with the result of its ADD.
    pub fn check(&self, pod: &Namespace, config: &Value, previous: &Value) -> Answer {
        self.make(&self.call("CHECK", pod, &with(config, "prevResult", previous.clone())))
    }
}

/// The shipped program: static and optimised.
pub fn shipped() -> PathBuf {
    let path = std::env::var_os("FERROVIRT_CNI")
        .expect("FERROVIRT_CNI is not set: make cni builds it, make test sets it");
    assert!(Path::new(&path).is_file(), "{path:?} is not there: make cni builds it");
    path.into()
}

/// A Go reference plugin, or cnitool.
pub fn peer(name: &str) -> PathBuf {
    let folder = std::env::var_os("FERROVIRT_PEERS")
        .expect("FERROVIRT_PEERS is not set: make peers builds them, make test sets it");
    let path = Path::new(&folder).join(name);
    assert!(path.is_file(), "{path:?} is not there: make peers builds it");
    path
}

/// The value with one key set.
pub fn with(value: &Value, key: &str, member: Value) -> Value {
    let mut value = value.clone();
    value[key] = member;
    value
}

/// A `bridge` configuration of version 1.1.0 on bridge `br0`.
pub fn bridge() -> Value {
    json!({"cniVersion": "1.1.0", "name": "net", "type": "bridge", "bridge": "br0"})
}

/// The same with further keys.
pub fn bridge_with(keys: Value) -> Value {
    let mut config = bridge();
    let Value::Object(keys) = keys else { panic!("{keys}") };
    config.as_object_mut().unwrap().extend(keys);
    config
}

/// A file of `tests/golden`, compared with `shown`; FERROVIRT_BLESS=1 writes it instead.
#[track_caller]
pub fn golden(name: &str, shown: &Value) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    let shown = serde_json::to_string_pretty(shown).unwrap() + "\n";
    if std::env::var_os("FERROVIRT_BLESS").is_some() {
        std::fs::write(&file, &shown).unwrap();
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap_or_default(), shown, "{}", file.display());
}

/// Runs it for every version of the specification at the same time: each mostly waits, for the kernel or until addresses are
/// known to be unique.
pub fn in_every_version(test: fn(&str)) {
    std::thread::scope(|scope| {
        for version in VERSIONS {
            scope.spawn(move || test(version));
        }
    });
}

/// Full counts with FERROVIRT_SOAK=1.
pub fn count(small: usize, full: usize) -> usize {
    if std::env::var_os("FERROVIRT_SOAK").is_some() { full } else { small }
}

/// A result with what differs from run to run replaced: the pod's namespace, and Ethernet addresses.
pub fn stable(result: &Value, pod: &Namespace) -> Value {
    stable_in(result, &pod.path())
}

/// The same for a namespace that is known by its file.
pub fn stable_in(result: &Value, namespace: &str) -> Value {
    let mut text = result.to_string().replace(namespace, "NETNS");
    for interface in result["interfaces"].as_array().into_iter().flatten() {
        let mac = interface["mac"].as_str().unwrap();
        assert_eq!(mac.len(), 17, "{mac}");
        text = text.replace(mac, "MAC");
    }
    serde_json::from_str(&text).unwrap()
}
