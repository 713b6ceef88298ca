//! One call: the CNI_ variables and the configuration on standard input, both checked, before any plugin sees them.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use crate::error::{Error, Kind};
use crate::protocol::{Arguments, Json, Object, Version};

/// The largest configuration that is read, in bytes. Container runtimes keep far below; a prevResult with a thousand
/// interfaces has a tenth of it.
const CONFIGURATION_LIMIT: u64 = 4 << 20;

/// The verb of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Add,
    Delete,
    Check,
    Collect,
    Status,
    Version,
}

impl Verb {
    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "ADD" => Self::Add,
            "DEL" => Self::Delete,
            "CHECK" => Self::Check,
            "GC" => Self::Collect,
            "STATUS" => Self::Status,
            "VERSION" => Self::Version,
            _ => return None,
        })
    }

    /// As it stands in CNI_COMMAND.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Add => "ADD",
            Self::Delete => "DEL",
            Self::Check => "CHECK",
            Self::Collect => "GC",
            Self::Status => "STATUS",
            Self::Version => "VERSION",
        }
    }

    /// The oldest version of the specification that has this verb.
    fn since(self) -> Version {
        match self {
            Self::Add | Self::Delete | Self::Version => Version::V0_1_0,
            Self::Check => Version::V0_4_0,
            Self::Collect | Self::Status => Version::V1_1_0,
        }
    }

    /// Verbs that are about one attachment, and so need its names.
    fn has_attachment(self) -> bool {
        match self {
            Self::Add | Self::Delete | Self::Check => true,
            Self::Collect | Self::Status | Self::Version => false,
        }
    }
}

/// One interface in one container.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Attachment {
    /// CNI_CONTAINERID.
    pub(crate) container: String,
    /// CNI_IFNAME.
    pub(crate) interface: String,
}

/// A call that passed every check the specification names.
#[derive(Debug)]
pub(crate) struct Call {
    /// The verb.
    pub(crate) verb: Verb,
    /// The configuration's version, in which is answered.
    pub(crate) version: Version,
    /// The network's name.
    pub(crate) network: String,
    /// The attachment; both names are empty for verbs without one.
    pub(crate) attachment: Attachment,
    /// CNI_NETNS; a DEL may come without.
    pub(crate) namespace: Option<PathBuf>,
    /// CNI_NETNS_OVERRIDE: the namespace may be the one we run in.
    pub(crate) namespace_may_be_ours: bool,
    /// CNI_ARGS.
    pub(crate) arguments: Arguments,
    /// CNI_PATH: where further plugins are.
    pub(crate) path: Vec<PathBuf>,
    /// The configuration.
    pub(crate) config: Object,
    /// The same as it came, to be handed to further plugins.
    pub(crate) document: Vec<u8>,
}

impl Call {
    /// `cni.dev/valid-attachments` of a GC, and `cni.dev/attachments`, as the specification calls it in another place: valid
    /// is what either names.
    ///
    /// Neither key means that nothing is valid, and so does null: libcni leaves the key out for a caller without arguments,
    /// such as cnitool, which wants everything collected, and writes null for one without attachments.
    ///
    /// # Errors
    /// [`Kind::Config`] when an element is no object or lacks a name. Nothing must be removed then: its attachment could be
    /// valid.
    pub(crate) fn valid_attachments(&self) -> Result<BTreeSet<Attachment>, Error> {
        let mut valid = BTreeSet::new();
        for key in ["cni.dev/valid-attachments", "cni.dev/attachments"] {
            self.add_attachments(key, &mut valid)?;
        }
        Ok(valid)
    }

    fn add_attachments(&self, key: &str, valid: &mut BTreeSet<Attachment>) -> Result<(), Error> {
        for element in self.config.list(key)? {
            let Json::Object(element) = element else {
                return Err(Error::config(format!("an element of {key} is no object")));
            };
            let name = |member| {
                element
                    .text(member)?
                    .map(str::to_owned)
                    .ok_or_else(|| Error::config(format!("an element of {key} has no \"{member}\"")))
            };
            valid.insert(Attachment { container: name("containerID")?, interface: name("ifname")? });
        }
        Ok(())
    }
}

/// The CNI_ variables as they are.
#[derive(Clone, Debug, Default)]
pub(crate) struct Environment {
    pub(crate) command: OsString,
    pub(crate) container: OsString,
    pub(crate) namespace: OsString,
    pub(crate) interface: OsString,
    pub(crate) arguments: OsString,
    pub(crate) path: OsString,
    pub(crate) namespace_override: OsString,
}

impl Environment {
    /// Takes them from this process.
    pub(crate) fn of_process() -> Self {
        let get = |name| std::env::var_os(name).unwrap_or_default();
        Self {
            command: get("CNI_COMMAND"),
            container: get("CNI_CONTAINERID"),
            namespace: get("CNI_NETNS"),
            interface: get("CNI_IFNAME"),
            arguments: get("CNI_ARGS"),
            path: get("CNI_PATH"),
            namespace_override: get("CNI_NETNS_OVERRIDE"),
        }
    }
}

/// A call as far as it is understood; an error is answered in `version`.
#[derive(Debug)]
pub(crate) struct Reading {
    /// The version the configuration named, if it named one of ours.
    pub(crate) version: Option<Version>,
    /// None for VERSION, which takes nothing.
    pub(crate) call: Result<Option<Call>, Error>,
}

/// Checks the variables, reads the configuration and checks it. VERSION needs neither.
pub(crate) fn read(environment: &Environment, input: impl Read) -> Reading {
    let mut version = None;
    let call = checked(environment, input, &mut version);
    Reading { version, call }
}

fn checked(
    environment: &Environment,
    input: impl Read,
    version: &mut Option<Version>,
) -> Result<Option<Call>, Error> {
    let command = words(&environment.command, "CNI_COMMAND")?;
    let verb = Verb::named(&command).ok_or_else(|| {
        Error::new(
            Kind::Environment,
            format!("CNI_COMMAND: \"{}\" is not a command of CNI", command.escape_debug()),
        )
    })?;
    if verb == Verb::Version {
        return Ok(None);
    }
    let attachment = variables(environment, verb)?;

    let mut document = Vec::new();
    input
        .take(CONFIGURATION_LIMIT + 1)
        .read_to_end(&mut document)
        .map_err(|error| Error::io("the configuration cannot be read from standard input", error))?;
    if document.len() as u64 > CONFIGURATION_LIMIT {
        let message = format!("the configuration is longer than {CONFIGURATION_LIMIT} bytes");
        return Err(Error::new(Kind::Decode, message));
    }
    let config = Object::parse(&document, "the configuration")?;
    let named = config.text("cniVersion");
    *version = named.as_ref().ok().and_then(|name| Version::named(*name));
    let network = config.text("name")?.unwrap_or_default().to_owned();
    if network.is_empty() {
        return Err(Error::config("the configuration has no network name (\"name\")"));
    }
    if !is_name(&network) {
        return Err(Error::config(format!(
            "\"{}\" is not the name of a network: a letter or digit first, then letters, digits, \"_\", \".\" and \"-\"",
            network.escape_debug()
        )));
    }
    let named = named?;
    let Some(version) = *version else {
        let all = Version::ALL.map(Version::as_str).join(", ");
        let asked = named.unwrap_or_default().escape_debug();
        return Err(Error::new(
            Kind::Version,
            format!("CNI version \"{asked}\" is not supported; these are: {all}"),
        ));
    };
    if version < verb.since() {
        return Err(Error::new(
            Kind::Version,
            format!("CNI version {} has no {}", version.as_str(), verb.as_str()),
        ));
    }

    let namespace = Some(PathBuf::from(&environment.namespace)).filter(|path| !path.as_os_str().is_empty());
    let override_ = environment.namespace_override.as_bytes();
    Ok(Some(Call {
        verb,
        version,
        network,
        attachment,
        namespace,
        namespace_may_be_ours: override_ == b"1" || override_.eq_ignore_ascii_case(b"true"),
        arguments: match words(&environment.arguments, "CNI_ARGS").and_then(|text| Arguments::parse(&text)) {
            Ok(arguments) => arguments,
            // Arguments that every ADD rejects must not block a DEL.
            Err(_) if verb == Verb::Delete => Arguments::default(),
            Err(error) => return Err(error),
        },
        path: std::env::split_paths(&environment.path).collect(),
        config,
        document,
    }))
}

fn variables(environment: &Environment, verb: Verb) -> Result<Attachment, Error> {
    let mut missing = Vec::new();
    let mut needed = |value: &OsString, name: &'static str, wanted: bool| {
        if wanted && value.is_empty() {
            missing.push(name);
        }
    };
    let about_one = verb.has_attachment();
    needed(&environment.container, "CNI_CONTAINERID", about_one);
    needed(&environment.namespace, "CNI_NETNS", about_one && verb != Verb::Delete);
    needed(&environment.interface, "CNI_IFNAME", about_one);
    needed(&environment.path, "CNI_PATH", true);
    if !missing.is_empty() {
        let message = format!("{} needs {}", verb.as_str(), missing.join(", "));
        return Err(Error::new(Kind::Environment, message));
    }
    if !about_one {
        return Ok(Attachment { container: String::new(), interface: String::new() });
    }
    let container = words(&environment.container, "CNI_CONTAINERID")?;
    if !is_name(&container) {
        return Err(Error::new(
            Kind::Environment,
            format!("CNI_CONTAINERID: \"{}\" is not the id of a container", container.escape_debug()),
        ));
    }
    let interface = words(&environment.interface, "CNI_IFNAME")?;
    // Resources of an ADD by an older version must be removable by this name.
    let deletes = verb == Verb::Delete && is_interface_name(&interface.replace('%', "_"));
    if !is_interface_name(&interface) && !deletes {
        return Err(Error::new(
            Kind::Environment,
            format!("CNI_IFNAME: \"{}\" is not the name of an interface", interface.escape_debug()),
        ));
    }
    Ok(Attachment { container, interface })
}

fn words(value: &OsString, name: &str) -> Result<String, Error> {
    value
        .to_str()
        .map(str::to_owned)
        .ok_or_else(|| Error::new(Kind::Environment, format!("{name} is not UTF-8")))
}

/// Container ids and network names: libcni's rule.
pub(crate) fn is_name(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && text.chars().all(|one| one.is_ascii_alphanumeric() || matches!(one, '_' | '.' | '-'))
}

/// The kernel's rule: 1 to 15 bytes, no slash, colon or space, neither "." nor "..". Control characters are refused
/// too, which the kernel takes, and no log survives; and "%", which the kernel takes for the place of a number: a link of
/// another name would come.
pub(crate) fn is_interface_name(text: &str) -> bool {
    let odd = |one: char| matches!(one, '/' | ':' | '%') || one.is_whitespace() || one.is_control();
    (1..=15).contains(&text.len()) && text != "." && text != ".." && !text.contains(odd)
}

#[cfg(test)]
impl Call {
    /// An ADD of `eth0` in container `c1` to network `net` on `br0`; `keys` are further ones of its configuration, each followed by
    /// a comma.
    pub(crate) fn adding(keys: &str) -> Self {
        let environment = Environment {
            command: "ADD".into(),
            container: "c1".into(),
            namespace: "/run/netns/x".into(),
            interface: "eth0".into(),
            path: "/".into(),
            ..Environment::default()
        };
        let text = format!(r#"{{"bridge": "br0", {keys} "cniVersion": "1.1.0", "name": "net"}}"#);
        read(&environment, text.as_bytes()).call.unwrap().unwrap()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add() -> Environment {
        Environment {
            command: "ADD".into(),
            container: "c1".into(),
            namespace: "/run/netns/x".into(),
            interface: "eth0".into(),
            path: "/opt/cni/bin:/usr/lib/cni".into(),
            ..Environment::default()
        }
    }

    fn kind(environment: &Environment, config: &str) -> Option<Kind> {
        read(environment, config.as_bytes()).call.err().map(|error| error.kind())
    }

    #[test]
    fn a_call_is_taken_apart() {
        let reading = read(&add(), br#"{"cniVersion": "0.3.1", "NAME": "net", "type": "bridge"}"#.as_slice());
        let call = reading.call.unwrap().unwrap();
        assert_eq!((call.network.as_str(), call.version), ("net", Version::V0_3_1));
        assert_eq!(call.path.len(), 2);
    }

    #[test]
    fn attachments_of_a_collection() {
        let valid = |keys: &str| {
            let valid = Call::adding(keys).valid_attachments().map_err(|error| error.kind())?;
            Ok(valid.into_iter().map(|one| one.container).collect::<Vec<_>>().join(" "))
        };
        let (one, two) =
            (r#"{"containerID": "c1", "ifname": "a"}"#, r#"{"containerID": "c2", "ifname": "a"}"#);
        let of = |list: &str| format!(r#""cni.dev/valid-attachments": {list},"#);
        for (keys, wanted) in [
            (String::new(), Ok("")),
            (of("null"), Ok("")),
            (of("[]"), Ok("")),
            (of(&format!("[{one}]")), Ok("c1")),
            (of(&format!("[{one}]")) + &format!(r#""cni.dev/attachments": [{two}],"#), Ok("c1 c2")),
            (format!(r#""cni.dev/attachments": [{two}],"#), Ok("c2")),
            (of("[null]"), Err(Kind::Config)),
            (of(&format!("[{one}, null]")), Err(Kind::Config)),
            (of("{}"), Err(Kind::Config)),
            (of("[7]"), Err(Kind::Config)),
            (of(r#"[{"containerID": "c1"}]"#), Err(Kind::Config)),
            (of(r#"[{"containerID": "c1", "ifname": null}]"#), Err(Kind::Config)),
            (r#""cni.dev/attachments": [null],"#.to_owned(), Err(Kind::Config)),
        ] {
            assert_eq!(valid(&keys), wanted.map(str::to_owned), "{keys}");
        }
    }

    #[test]
    fn version_reads_nothing() {
        let environment = Environment { command: "VERSION".into(), ..Environment::default() };
        assert!(matches!(read(&environment, b"nonsense".as_slice()).call, Ok(None)));
    }

    #[test]
    fn rejects_invalid_variables() {
        let config = r#"{"cniVersion": "1.0.0", "name": "net"}"#;
        type Change = fn(&mut Environment);
        let changes: [Change; 10] = [
            |e| e.command = "FOO".into(),
            |e| e.container = "".into(),
            |e| e.container = "a/b".into(),
            |e| e.container = "-a".into(),
            |e| e.namespace = "".into(),
            |e| e.interface = "a234567890123456".into(),
            |e| e.interface = "a b".into(),
            |e| e.interface = "e%d".into(),
            |e| e.path = "".into(),
            |e| e.arguments = "soup".into(),
        ];
        for change in changes {
            let mut environment = add();
            change(&mut environment);
            assert_eq!(kind(&environment, config), Some(Kind::Environment), "{environment:?}");
        }
        let mut without_namespace = add();
        without_namespace.namespace = "".into();
        without_namespace.command = "DEL".into();
        assert_eq!(kind(&without_namespace, config), None);
    }

    #[test]
    fn rejects_invalid_configurations() {
        for (config, wanted) in [
            ("", Kind::Decode),
            (r#"{"cniVersion": "1.0.0"}"#, Kind::Config),
            (r#"{"cniVersion": "1.0.0", "name": "a/b"}"#, Kind::Config),
            (r#"{"cniVersion": "1.0.0", "name": ".."}"#, Kind::Config),
            (r#"{"cniVersion": "2.0.0", "name": "net"}"#, Kind::Version),
            (r#"{"cniVersion": "0.3", "name": "net"}"#, Kind::Version),
        ] {
            assert_eq!(kind(&add(), config), Some(wanted), "{config}");
        }
    }

    #[test]
    fn verbs_are_as_old_as_they_are() {
        for (verb, oldest) in [("CHECK", 4), ("GC", 6), ("STATUS", 6)] {
            for (index, version) in Version::ALL.into_iter().enumerate() {
                let environment = Environment { command: verb.into(), ..add() };
                let config = format!(r#"{{"cniVersion": "{}", "name": "net"}}"#, version.as_str());
                let wanted = (index < oldest).then_some(Kind::Version);
                assert_eq!(kind(&environment, &config), wanted, "{verb} {version:?}");
            }
        }
    }
}
