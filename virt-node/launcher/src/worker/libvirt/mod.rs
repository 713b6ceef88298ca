//! libvirt, embedded: its driver for QEMU runs in this process, on a directory of its own, without a daemon.
//!
//! Not here: what is done with a guest ([`super::guest`]).

mod features;
mod sys;

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::fmt;
use std::fs;
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread;

use api::launch::{CpuFeature, FeaturePolicy, NamedCpu, Word};
use api::launcher::{Cause, PauseReason, State};

use super::Notice as ToWorker;
use crate::folder::Folder;

pub(super) use features::capabilities;
pub(crate) use sys::{Connection, Domain, Statistic};

/// An error of libvirt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure(pub(crate) String);

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Failure {}

/// An event of the domain, in libvirt's numbers (virDomainEventType and its details).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    Lifecycle {
        event: c_int,
        detail: c_int,
    },
    Rebooted,
    Watchdog,
    IoError {
        disk: String,
        reason: String,
    },
    Agent {
        connected: bool,
    },
    /// A device is gone, of this alias.
    Removed {
        device: String,
    },
    /// A device is there, or the guest has taken or given memory.
    Changed,
    /// QEMU ends; `details` are its own, as JSON.
    SwitchingOff {
        details: String,
    },
}

/// How much of libvirt's state of a domain is read, in bytes.
const HEAD: u64 = 4096;
/// The prefix that libvirt requires of aliases other than its own.
const USER_ALIAS: &str = "ua-";
const EVENT_STOPPED: c_int = 5;
/// virDomainEventStoppedDetailType.
const STOPPED_SHUTDOWN: c_int = 0;
const STOPPED_DESTROYED: c_int = 1;
/// virDomainCreateFlags: processors stand still at first.
const CREATE_PAUSED: u32 = 1;
/// virDomainShutdownFlagValues and virDomainRebootFlagValues.
const BY_ACPI: u32 = 1;
const BY_AGENT: u32 = 2;

/// Opens the driver on a guest's folder; a domain that runs there is taken over. What happens to it goes to `notices`.
pub(super) fn open(folder: &Folder, notices: Sender<ToWorker>) -> Result<Arc<Connection>, Failure> {
    forget_unborn(folder).map_err(|error| {
        Failure(format!("cannot remove libvirt's state of an unfinished domain: {error}"))
    })?;
    let (sender, receiver) = std::sync::mpsc::channel();
    let uri = format!("qemu:///embed?root={}", folder.libvirt().display());
    let connection = Arc::new(Connection::open(&uri, sender)?);
    let looping = Arc::clone(&connection);
    let spawn = |name: &str, work: Box<dyn FnOnce() + Send>| {
        thread::Builder::new().name(name.to_owned()).spawn(work).map_err(|error| Failure(error.to_string()))
    };
    spawn("libvirt", Box::new(move || while looping.run().is_ok() {}))?;
    spawn(
        "notices",
        Box::new(move || {
            // Ends with the process: the sender stays in libvirt's hands.
            while let Ok(notice) = receiver.recv() {
                if notices.send(ToWorker::Libvirt(notice)).is_err() {
                    return;
                }
            }
        }),
    )?;
    Ok(connection)
}

/// Removes libvirt's state of a domain whose start was cut short before QEMU had a process. Its state has the process number
/// 0, which libvirt takes for a process that may still appear: it tries to reach it for half a minute, and keeps the domain
/// for ever.
fn forget_unborn(folder: &Folder) -> io::Result<()> {
    let states = match fs::read_dir(folder.libvirt().join("run/qemu")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        states => states?,
    };
    for state in states {
        let path = state?.path();
        if path.extension().is_none_or(|extension| extension != "xml") {
            continue;
        }
        let mut head = Vec::new();
        fs::File::open(&path)?.take(HEAD).read_to_end(&mut head)?;
        if is_unborn(&String::from_utf8_lossy(&head)) {
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}

/// Whether libvirt's state of a domain, which follows a comment, is of one without a process.
fn is_unborn(state: &str) -> bool {
    between(state, "<domstatus ", ">").and_then(|attributes| between(attributes, " pid='", "'")) == Some("0")
}

/// The domain of this guest, if there is one.
pub(super) fn domain(connection: &Connection) -> Result<Option<Domain<'_>>, Failure> {
    Ok(connection.domains()?.into_iter().next())
}

/// Makes and starts the domain.
pub(super) fn create(connection: &Connection, xml: &str, paused: bool) -> Result<(), Failure> {
    let created = connection.create(xml, if paused { CREATE_PAUSED } else { 0 });
    created.map_err(|Failure(text)| Failure(start_failure(&text)))
}

/// Why a guest does not start: a sentence first, and then what QEMU wrote before it ended, without times and its own name.
fn start_failure(text: &str) -> String {
    let ends = ["process exited while connecting to monitor", "QEMU unexpectedly closed the monitor"];
    let Some(at) = ends.iter().find_map(|end| Some(text.find(end)? + end.len())) else {
        return text.to_owned();
    };
    let (_, wrote) = text[at..].split_once(": ").unwrap_or_default();
    let plain = |line: &'_ str| {
        let is_time = |word: &str| {
            word.ends_with('Z') && word.contains('T') && word.starts_with(|c: char| c.is_ascii_digit())
        };
        let line = line.split_once(' ').filter(|(word, _)| is_time(word)).map_or(line, |(_, rest)| rest);
        let own = line.split_once(": ").filter(|(word, _)| word.starts_with("qemu-system-"));
        own.map_or(line, |(_, rest)| rest).to_owned()
    };
    let wrote: Vec<String> = wrote.lines().map(plain).filter(|line| !line.trim().is_empty()).collect();
    if wrote.is_empty() {
        return "QEMU ended before the guest started, and wrote nothing".to_owned();
    }
    format!("QEMU ended before the guest started: {}", wrote.join("; "))
}

/// The domain that is left when what went on before is over; `None`: its QEMU is gone.
pub(super) fn settled(connection: &Connection) -> Result<Option<Domain<'_>>, Failure> {
    let Some(found) = domain(connection)? else { return Ok(None) };
    // A domain that vanishes in between is an error here, and absent afterwards.
    drop(found.settle());
    let Some(found) = domain(connection)? else { return Ok(None) };
    if state(&found).is_ok_and(|(state, _)| state == State::Starting) {
        // Its start will not be continued.
        drop(found.destroy());
    }
    domain(connection)
}

pub(super) fn press_power_button(domain: &Domain<'_>) -> Result<(), Failure> {
    domain.shut_down(BY_ACPI)
}

/// Whether the domain has a device of this alias of ours.
pub(super) fn has(domain: &Domain<'_>, alias: &str) -> Result<bool, Failure> {
    Ok(domain.xml()?.contains(&format!("<alias name='{USER_ALIAS}{alias}'/>")))
}

/// The changeable part of a running domain's description.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Described {
    /// Whether the guest's agent is connected.
    pub(super) agent: bool,
    /// Processors that are plugged in.
    pub(super) processors: u32,
    /// Bytes of memory that the guest is to take beyond those that it was started with.
    pub(super) requested: u64,
    /// Bytes of these that it has taken.
    pub(super) more_memory: u64,
    /// Names of disks, by our aliases.
    pub(super) targets: BTreeMap<String, String>,
}

pub(super) fn described(domain: &Domain<'_>) -> Result<Described, Failure> {
    Ok(describe(&domain.xml()?))
}

fn between<'a>(text: &'a str, before: &str, after: &str) -> Option<&'a str> {
    text.split_once(before)?.1.split_once(after).map(|(inner, _)| inner)
}

/// As libvirt writes it: an element a line.
fn describe(xml: &str) -> Described {
    let mut agents = xml.lines().filter(|line| line.contains("name='org.qemu.guest_agent.0'"));
    let agent = agents.any(|line| line.contains("state='connected'"));
    let processors = between(xml, "<vcpu ", "</vcpu>").and_then(|vcpu| {
        let (attributes, most) = vcpu.split_once('>')?;
        between(attributes, "current='", "'").unwrap_or(most).parse().ok()
    });
    let memory = between(xml, "<memory model='virtio-mem'", "</memory>");
    let kib = |name: &str| {
        let text = between(memory?, &format!("<{name} unit='KiB'>"), "<")?;
        text.parse::<u64>().ok()?.checked_mul(1024)
    };
    let disks = xml.split("<disk ").skip(1).filter_map(|disk| {
        let disk = disk.split_once("</disk>")?.0;
        let alias = between(disk, &format!("<alias name='{USER_ALIAS}"), "'")?;
        Some((alias.to_owned(), between(disk, "<target dev='", "'")?.to_owned()))
    });
    Described {
        agent,
        processors: processors.unwrap_or(0),
        requested: kib("requested").unwrap_or(0),
        more_memory: kib("current").unwrap_or(0),
        targets: disks.collect(),
    }
}

/// The CPU model of the domain, where libvirt has chosen one.
pub(super) fn processor(domain: &Domain<'_>) -> Result<Option<NamedCpu>, Failure> {
    Ok(named_cpu(&domain.xml()?))
}

/// The processor in a domain's description, as libvirt writes it: an element a line.
fn named_cpu(xml: &str) -> Option<NamedCpu> {
    let cpu = between(xml, "<cpu mode='custom' ", "</cpu>")?;
    let model = between(cpu, "<model", "</model>")?;
    let (_, model) = model.split_once('>')?;
    let features = cpu.lines().filter(|line| line.trim_start().starts_with("<feature "));
    let features = features.map(|line| {
        let policy = between(line, "policy='", "'").and_then(FeaturePolicy::from_word)?;
        Some(CpuFeature { name: between(line, "name='", "'")?.to_owned(), policy })
    });
    Some(NamedCpu { model: model.to_owned(), features: features.collect::<Option<_>>()? })
}

/// Changes what runs.
const LIVE: u32 = 1;

pub(super) fn attach(domain: &Domain<'_>, xml: &str) -> Result<(), Failure> {
    domain.attach(xml, LIVE)
}

/// Whether QEMU has a device of this alias of ours. One that it takes apart is not there any more, and may still hold its
/// disk.
pub(super) fn is_in_qemu(domain: &Domain<'_>, alias: &str) -> Result<bool, Failure> {
    #[derive(serde::Deserialize)]
    struct Device {
        name: String,
    }
    let devices: Vec<Device> = ask(domain, "qom-list", &serde_json::json!({"path": "/machine/peripheral"}))?;
    Ok(devices.iter().any(|device| device.name.strip_prefix(USER_ALIAS) == Some(alias)))
}

/// The threads of the guest's vCPUs, in their order.
pub(super) fn vcpu_threads(domain: &Domain<'_>) -> Result<Vec<i32>, Failure> {
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "kebab-case")]
    struct Vcpu {
        cpu_index: u32,
        thread_id: i32,
    }
    let mut vcpus: Vec<Vcpu> = ask(domain, "query-cpus-fast", &serde_json::json!({}))?;
    vcpus.sort_by_key(|vcpu| vcpu.cpu_index);
    Ok(vcpus.into_iter().map(|vcpu| vcpu.thread_id).collect())
}

/// A block node of QEMU.
#[derive(serde::Deserialize)]
struct Node {
    #[serde(rename = "node-name", default)]
    name: String,
    file: String,
}

/// Has QEMU close a disk that no device uses; whether it has it open no more. libvirt closes the disk of a device that goes,
/// and reports nothing if QEMU refuses because it still takes the device apart.
pub(super) fn close(domain: &Domain<'_>, path: &str) -> Result<bool, Failure> {
    let nodes = || -> Result<Vec<Node>, Failure> {
        let all: Vec<Node> = ask(domain, "query-named-block-nodes", &serde_json::json!({"flat": true}))?;
        Ok(all.into_iter().filter(|node| node.file == path).collect())
    };
    let open = nodes()?;
    if open.is_empty() {
        return Ok(true);
    }
    // The format's node, which came later, is on the file's.
    for node in open.iter().rev() {
        let closed: Result<serde_json::Value, _> =
            ask(domain, "blockdev-del", &serde_json::json!({"node-name": node.name}));
        // In use: it is closed at the next attempt.
        drop(closed);
    }
    Ok(nodes()?.is_empty())
}

/// A question to QEMU's monitor.
fn ask<T: serde::de::DeserializeOwned>(
    domain: &Domain<'_>,
    command: &str,
    arguments: &serde_json::Value,
) -> Result<T, Failure> {
    let text = serde_json::json!({"execute": command, "arguments": arguments}).to_string();
    answered(command, &domain.monitor(&text)?)
}

/// The answer of QEMU's monitor.
fn answered<T: serde::de::DeserializeOwned>(command: &str, answer: &str) -> Result<T, Failure> {
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Answer<T> {
        Return(T),
        Error { desc: String },
    }
    #[derive(serde::Deserialize)]
    struct Whole<T> {
        #[serde(flatten)]
        answer: Answer<T>,
    }
    match serde_json::from_str::<Whole<T>>(answer) {
        Ok(Whole { answer: Answer::Return(value) }) => Ok(value),
        Ok(Whole { answer: Answer::Error { desc } }) => {
            Err(Failure(format!("QEMU refuses {command}: {desc}")))
        }
        Err(error) => Err(Failure(format!("QEMU's answer to {command} cannot be read: {error}"))),
    }
}

/// By our alias. Returns before the device is gone, which the guest may have to agree to.
pub(super) fn detach(domain: &Domain<'_>, alias: &str) -> Result<(), Failure> {
    domain.detach(&format!("{USER_ALIAS}{alias}"), LIVE)
}

pub(super) fn set_processors(domain: &Domain<'_>, count: u32) -> Result<(), Failure> {
    domain.set_processors(count, LIVE)
}

/// Changes a device to its description in `xml`.
pub(super) fn update(domain: &Domain<'_>, xml: &str) -> Result<(), Failure> {
    domain.update(xml, LIVE)
}

/// Opens a drive also while the guest has locked its tray.
const FORCE: u32 = 4;

/// Changes the medium of a CD drive to that of `xml`.
pub(super) fn change_medium(domain: &Domain<'_>, xml: &str) -> Result<(), Failure> {
    domain.update(xml, LIVE | FORCE)
}

/// The size is in bytes.
const RESIZE_BYTES: u32 = 1;

pub(super) fn resize(domain: &Domain<'_>, path: &str, size: u64) -> Result<(), Failure> {
    domain.resize(path, size, RESIZE_BYTES)
}

/// An ELF core without compression.
const DUMP_RAW: u32 = 0;
/// Of the memory alone, without the state of devices.
const DUMP_MEMORY_ONLY: u32 = 16;

/// Writes the guest's memory into a file; the guest stands still until it is written. It takes libvirt's helper
/// `libvirt_iohelper`. Not by QEMU's monitor: libvirt 9.0 crashes at the event of a dump that it did not begin.
pub(super) fn dump(domain: &Domain<'_>, path: &str) -> Result<(), Failure> {
    domain.core_dump(path, DUMP_RAW, DUMP_MEMORY_ONLY)
}

/// Groups of statistics (virDomainStatsTypes): state, CPU, balloon, vCPUs, interfaces, disks.
const STATISTICS: u32 = 1 | 2 | 4 | 8 | 16 | 32;
/// Leave out what has to wait for another operation on the domain.
const STATISTICS_NOW: u32 = 1 << 29;

/// What libvirt and QEMU count.
pub(super) fn statistics(domain: &Domain<'_>) -> Result<Vec<(String, Statistic)>, Failure> {
    domain.statistics(STATISTICS, STATISTICS_NOW)
}

/// Our alias of what libvirt calls by `device`.
pub(super) fn own_alias(device: &str) -> &str {
    device.strip_prefix(USER_ALIAS).unwrap_or(device)
}

/// By the guest's agent, else by ACPI.
pub(super) fn soft_reboot(domain: &Domain<'_>) -> Result<(), Failure> {
    domain.reboot(BY_AGENT).or_else(|_| domain.reboot(BY_ACPI))
}

/// How a notice ended the guest; `None`: it did not.
pub(super) fn end(notice: &Notice) -> Option<Cause> {
    match notice {
        Notice::Lifecycle { event: EVENT_STOPPED, detail } => Some(match *detail {
            STOPPED_SHUTDOWN => Cause::Shutdown,
            STOPPED_DESTROYED => Cause::Killed,
            _ => Cause::Crashed,
        }),
        Notice::Lifecycle { .. }
        | Notice::Rebooted
        | Notice::Watchdog
        | Notice::IoError { .. }
        | Notice::Agent { .. }
        | Notice::Removed { .. }
        | Notice::Changed
        | Notice::SwitchingOff { .. } => None,
    }
}

/// Whether QEMU switches off since the guest is to be reset, which is the end of the run for it.
pub(super) fn is_reset(details: &str) -> bool {
    #[derive(serde::Deserialize)]
    struct Details {
        reason: String,
    }
    serde_json::from_str(details).is_ok_and(|Details { reason }| reason.ends_with("-reset"))
}

/// The state of a domain, from virDomainState and virDomainPausedReason.
pub(super) fn state(domain: &Domain<'_>) -> Result<(State, Option<PauseReason>), Failure> {
    domain.state().map(|(state, reason)| meaning(state, reason))
}

fn meaning(state: c_int, reason: c_int) -> (State, Option<PauseReason>) {
    match (state, reason) {
        // Paused while it starts or ends: not by request.
        (3, 11) => (State::Starting, None),
        (3, 8) | (4, _) => (State::Stopping, None),
        (3, 1) => (State::Paused, Some(PauseReason::Asked)),
        (3, 5) => (State::Paused, Some(PauseReason::IoError)),
        (3, 6) => (State::Paused, Some(PauseReason::Watchdog)),
        (3, _) => (State::Paused, Some(PauseReason::Other)),
        (5 | 6, _) => (State::Ended, None),
        _ => (State::Running, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_domain_without_a_process_is_recognised() {
        let state =
            |attributes: &str| format!("<!--\nWARNING\n-->\n\n<domstatus {attributes}>\n  <monitor/>\n");
        assert!(is_unborn(&state("state='paused' reason='starting up' pid='0'")));
        assert!(!is_unborn(&state("state='paused' reason='starting up' pid='4711'")));
        assert!(!is_unborn(&state("state='running' reason='booted' pid='10'")));
        assert!(!is_unborn("<domstatus state='running' reason='booted'"), "torn");
        assert!(!is_unborn("<domain type='qemu' id='0'>"));
    }

    #[test]
    fn a_processor_is_read_as_libvirt_writes_it() {
        let xml =
            |cpu: &str| format!("<domain>\n  <name>a</name>\n  <cpu {cpu}\n  </cpu>\n  <clock/>\n</domain>");
        let text = "mode='custom' match='exact' check='full'>
    <model fallback='forbid'>EPYC</model>
    <vendor>AMD</vendor>
    <topology sockets='1' dies='1' cores='1' threads='1'/>
    <feature policy='require' name='acpi'/>
    <feature policy='disable' name='svm'/>
    <numa>
      <cell id='0' cpus='0' memory='65536' unit='KiB'/>
    </numa>";
        let feature = |name: &str, policy| CpuFeature { name: name.to_owned(), policy };
        let features = vec![feature("acpi", FeaturePolicy::Require), feature("svm", FeaturePolicy::Disable)];
        assert_eq!(named_cpu(&xml(text)), Some(NamedCpu { model: "EPYC".to_owned(), features }));
        assert_eq!(named_cpu(&xml("mode='maximum' check='none'>")), None);
        assert_eq!(named_cpu(&xml("mode='custom' match='exact'>\n    <topology/>")), None);
    }

    #[test]
    fn a_failed_start_is_a_sentence_and_then_what_qemu_wrote() {
        let text = "internal error: process exited while connecting to monitor: 2026-01-02T03:04:05.678901Z qemu-system-x86_64: \
            -blockdev {\"driver\":\"file\"}: Could not open '/d': Permission denied";
        assert_eq!(
            start_failure(text),
            "QEMU ended before the guest started: -blockdev {\"driver\":\"file\"}: Could not open '/d': Permission denied"
        );
        let two = "internal error: QEMU unexpectedly closed the monitor (vm='a_b'): warning: a\n2026-01-02T03:04:05Z qemu-system-x86_64: b\n";
        assert_eq!(start_failure(two), "QEMU ended before the guest started: warning: a; b");
        let none = "internal error: process exited while connecting to monitor";
        assert_eq!(start_failure(none), "QEMU ended before the guest started, and wrote nothing");
        assert_eq!(start_failure("unsupported configuration: x"), "unsupported configuration: x");
    }

    #[test]
    fn answers_of_the_monitor_are_read() {
        let nodes =
            "{\"return\": [{\"node-name\": \"a\", \"file\": \"/x\", \"ro\": false}], \"id\": \"libvirt-7\"}";
        let nodes: Vec<Node> = answered("q", nodes).unwrap();
        assert_eq!((nodes[0].name.as_str(), nodes[0].file.as_str()), ("a", "/x"));
        let error = "{\"id\": \"libvirt-8\", \"error\": {\"class\": \"GenericError\", \"desc\": \"Node a is in use\"}}";
        let error = answered::<serde_json::Value>("blockdev-del", error).unwrap_err();
        assert_eq!(error.0, "QEMU refuses blockdev-del: Node a is in use");
        assert!(answered::<serde_json::Value>("q", "").is_err());
        assert_eq!(
            answered::<serde_json::Value>("blockdev-del", "{\"return\": {}}").unwrap(),
            serde_json::json!({})
        );
    }

    #[test]
    fn changeable_parts_are_read_as_libvirt_writes_them() {
        let xml = "<domain type='qemu' id='1'>
  <memory unit='KiB'>4194304</memory>
  <vcpu placement='static' current='2'>4</vcpu>
  <devices>
    <disk type='file' device='disk'>
      <source file='/a'/>
      <target dev='sda' bus='sata'/>
      <alias name='ua-disk-root'/>
    </disk>
    <disk type='file' device='cdrom'>
      <target dev='sdb' bus='sata'/>
      <alias name='sata0-0-1'/>
    </disk>
    <channel type='unix'>
      <target type='virtio' name='org.qemu.guest_agent.0' state='connected'/>
    </channel>
    <memory model='virtio-mem'>
      <target>
        <size unit='KiB'>3145728</size>
        <requested unit='KiB'>4096</requested>
        <current unit='KiB'>2048</current>
      </target>
    </memory>
  </devices>
</domain>";
        let targets = BTreeMap::from([("disk-root".to_owned(), "sda".to_owned())]);
        let wanted =
            Described { agent: true, processors: 2, requested: 4 << 20, more_memory: 2 << 20, targets };
        assert_eq!(describe(xml), wanted);
        let small = describe("<vcpu placement='static'>3</vcpu><target name='org.qemu.guest_agent.0'/>");
        assert_eq!(small, Described { processors: 3, ..Described::default() });
        assert_eq!(describe(""), Described::default());
    }

    #[test]
    fn libvirts_numbers_have_meanings() {
        for (numbers, wanted) in [
            ((1, 1), (State::Running, None)),
            ((2, 0), (State::Running, None)),
            ((3, 1), (State::Paused, Some(PauseReason::Asked))),
            ((3, 5), (State::Paused, Some(PauseReason::IoError))),
            ((3, 6), (State::Paused, Some(PauseReason::Watchdog))),
            ((3, 2), (State::Paused, Some(PauseReason::Other))),
            ((3, 11), (State::Starting, None)),
            ((3, 8), (State::Stopping, None)),
            ((4, 1), (State::Stopping, None)),
            ((5, 1), (State::Ended, None)),
            ((6, 1), (State::Ended, None)),
        ] {
            assert_eq!(meaning(numbers.0, numbers.1), wanted, "{numbers:?}");
        }
        for (event, detail, wanted) in [
            (5, 0, Some(Cause::Shutdown)),
            (5, 1, Some(Cause::Killed)),
            (5, 2, Some(Cause::Crashed)),
            (5, 5, Some(Cause::Crashed)),
            (2, 0, None),
            (3, 1, None),
            (6, 0, None),
        ] {
            assert_eq!(end(&Notice::Lifecycle { event, detail }), wanted, "{event} {detail}");
        }
        assert_eq!(end(&Notice::Rebooted), None);
        for (details, reset) in [
            ("{\"guest\":true,\"reason\":\"guest-reset\"}", true),
            ("{\"guest\":false,\"reason\":\"host-qmp-system-reset\"}", true),
            ("{\"guest\":true,\"reason\":\"guest-shutdown\"}", false),
            ("{}", false),
            ("", false),
        ] {
            assert_eq!(is_reset(details), reset, "{details}");
        }
    }
}
