//! The conversation with a running `virt-launcher`: requests, answers and events on its Unix socket, and the record that it
//! leaves behind.
//!
//! ```text
//! client ── Hello {versions} ──────────────►  launcher
//!        ◄─ Message: Hello {versions} ──────
//!        ── Call {version, id, request} ───►
//!        ◄─ Message: Answer {id, …} | Refused {id, …} | Event ──
//! ```
//!
//! The first frame lists the versions that each side speaks; the client speaks the latest that both do ([`version`]). Readers
//! of messages ignore fields and events that they do not know ([`Message::read`]); only a launch document is strict.
//!
//! Each message is a frame: its length as four bytes, the highest first, then that many bytes of JSON. A client may send the
//! next call before the answer to the last; answers of one connection come in the order of its calls. Only connections that
//! requested them ([`Request::Watch`]) get events, and only from then on: [`Status`] has the earlier state. A client that
//! does not read is disconnected, and asks for the status when it reconnects.
//!
//! Not here: sockets, libvirt.

pub mod capabilities;
mod read;
mod version;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use thiserror::Error;

use crate::launch::{DOCUMENT_MAX, Disk, Interface, Layout, NamedCpu, Storage, words};

pub use version::{Hello, VERSIONS, agree, agreed};

/// Longest frame in bytes, without its length: a launch document and what is around it.
pub const FRAME_MAX: usize = DOCUMENT_MAX + 4096;
/// Longest command for the guest agent, in bytes.
pub const AGENT_COMMAND_MAX: usize = 1 << 20;
/// Longest wait for the guest agent, in seconds.
pub const AGENT_TIMEOUT_MAX: u32 = 300;
/// Seconds that the guest agent has to freeze or thaw the guest's filesystems.
pub const FREEZE_TIMEOUT: u32 = 60;
/// Longest time for an answer, without that of the guest agent.
const ANSWER_MAX: Duration = Duration::from_secs(60);
/// Longest time for the answer to a start: the guest's memory may have to be found first.
const LAUNCH_MAX: Duration = Duration::from_secs(600);
/// Longest freeze in seconds.
pub const FREEZE_MAX: u64 = 3600;
/// The socket, in the run's folder.
pub const SOCKET: &str = "launcher";
/// The record of the guest's end, in the run's folder: an [`Exit`] as JSON.
pub const EXIT_RECORD: &str = "exit.json";

/// Why a frame is no message.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FrameError {
    /// Longer than [`FRAME_MAX`].
    #[error("a message of {0} bytes; {FRAME_MAX} bytes is the limit")]
    TooLong(usize),
    /// A version that this program does not speak.
    #[error("message of version {0}; this program speaks versions {VERSIONS:?}")]
    Version(u64),
    /// No version that both sides speak.
    #[error("the other side speaks versions {0:?}, this program {VERSIONS:?}: upgrade the older one")]
    NoCommonVersion(Vec<u32>),
    /// A request that the agreed version does not have.
    #[error(
        "the launcher speaks version {version}, which has no request {request:?}: it is of an older release"
    )]
    NotInVersion {
        /// The agreed version.
        version: u32,
        /// The request.
        request: &'static str,
    },
    /// Not of the form of a message.
    #[error("not a message of the launcher's protocol: {0}")]
    Malformed(String),
}

/// A client's call.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Call {
    /// The version that both sides agreed on.
    pub version: u32,
    /// The client's number, which comes back in the answer.
    pub id: u64,
    /// The request.
    pub request: Request,
}

/// The requests.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Request {
    /// Start the guest of this launch document ([`crate::launch::Launch`]). Answered with [`Answer::Launched`]; the same
    /// document again changes nothing.
    Launch(Box<RawValue>),
    /// Answered with [`Answer::Status`].
    Status,
    /// Report events from now on. Answered with [`Answer::Status`], as of the beginning of the watch.
    Watch,
    /// Stop its processors.
    Pause,
    /// Let them run again.
    Unpause,
    /// Press the power button, and kill the guest when the grace is over. Answered when the button is pressed.
    Shutdown {
        /// Seconds from now; `None`: the launch document's. Later requests may only shorten it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        grace_seconds: Option<u64>,
    },
    /// End it at once.
    Kill,
    /// Ask the guest to reboot: by its agent where that answers, else by ACPI.
    SoftReboot,
    /// Press the reset button.
    Reset,
    /// Give the guest one more disk, on virtio or SCSI. Answered with [`Answer::Layout`]; a disk of this name that is there
    /// changes nothing.
    AttachDisk(Box<Disk>),
    /// Take the disk of this name away. The guest lets go of it in its time; [`Event::Detached`] follows. Answered with
    /// [`Answer::Layout`], in which the disk has a place until then.
    DetachDisk(String),
    /// Put a file or device into the CD drive of this name, in place of what is in it. The same medium again changes nothing.
    /// Since version 2.
    Insert {
        /// Name of the drive.
        name: String,
        /// The medium.
        storage: Box<Storage>,
    },
    /// Open the CD drive of this name and take out what is in it. An empty drive stays as it is. Since version 2.
    Eject(String),
    /// Enlarge the disk of this name, and notify the guest. One of that size or more stays as it is; none shrinks.
    ResizeDisk {
        /// Its name.
        name: String,
        /// Bytes, a multiple of 512.
        size: u64,
    },
    /// Give the guest as many processors, and as much memory, where it has less; it keeps what it has more. It was started
    /// with room for them ([`crate::launch::Cpu::max_sockets`], [`crate::launch::Memory::max_guest`]). The guest takes
    /// memory in its time. Answered with [`Answer::Status`].
    Grow {
        /// Whole sockets of them.
        processors: u32,
        /// Bytes, more than at the start by a multiple of 2 MiB.
        memory: u64,
    },
    /// Give the guest one more network interface, or set the link of the one of this name. Answered as for a disk.
    AttachInterface(Box<Interface>),
    /// Take the interface of this name away, as a disk.
    DetachInterface(String),
    /// A command for the guest agent, as JSON text. Answered with [`Answer::Agent`].
    Agent {
        /// The command.
        command: String,
        /// Seconds to wait, at most [`AGENT_TIMEOUT_MAX`].
        timeout_seconds: u32,
    },
    /// Freeze the guest's filesystems, by its agent, and thaw them after a time. A frozen guest stays frozen for that time
    /// from now. Since version 2.
    Freeze {
        /// Seconds until they are thawed without a request, at most [`FREEZE_MAX`].
        seconds: u64,
    },
    /// Thaw them. Those that are not frozen stay as they are. Since version 2.
    Thaw,
    /// Write the guest's memory into a file, as an ELF core. Answered with [`Answer::Status`] when it has begun; its end is
    /// in [`Status::dump`]. The path of the last dump again begins none. Since version 2.
    Dump {
        /// The file, which exists.
        path: String,
    },
    /// The screen. Answered with [`Answer::Screenshot`].
    Screenshot,
    /// Counters of the guest. Answered with [`Answer::Stats`]. Since version 2; early launchers of that version refuse it.
    Stats,
    /// The guest as libvirt describes it. Answered with [`Answer::Description`]. Since version 2.
    Describe,
    /// Find QEMU, firmware and KVM on the launcher's machine or in its pod, as the user that the guest runs as. Answered with
    /// [`Answer::Facts`]. Since version 2.
    Facts {
        /// Disks that are to be opened past the page cache.
        #[serde(default)]
        paths: Vec<String>,
        /// Whether KVM was found to run a guest; `None`: it is tried.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        kvm_works: Option<bool>,
    },
}

impl Request {
    /// Longest time for the answer. A launcher that takes longer does not work.
    pub fn answer_max(&self) -> Duration {
        let by_agent = |seconds: u32| ANSWER_MAX + Duration::from_secs(seconds.into());
        match self {
            Self::Launch(_) => LAUNCH_MAX,
            Self::Agent { timeout_seconds, .. } => by_agent(*timeout_seconds),
            // The state, the freeze, and the thaw of one that fails.
            Self::Freeze { .. } => by_agent(3 * FREEZE_TIMEOUT),
            Self::Thaw => by_agent(FREEZE_TIMEOUT),
            Self::Status
            | Self::Watch
            | Self::Pause
            | Self::Unpause
            | Self::Shutdown { .. }
            | Self::Kill
            | Self::SoftReboot
            | Self::Reset
            | Self::AttachDisk(_)
            | Self::DetachDisk(_)
            | Self::Insert { .. }
            | Self::Eject(_)
            | Self::ResizeDisk { .. }
            | Self::Grow { .. }
            | Self::AttachInterface(_)
            | Self::DetachInterface(_)
            | Self::Dump { .. }
            | Self::Screenshot
            | Self::Stats
            | Self::Describe
            | Self::Facts { .. } => ANSWER_MAX,
        }
    }
}

words! {
    /// The state of a guest.
    pub enum State {
        /// No launch document came yet.
        Waiting = "waiting",
        /// It is being started.
        Starting = "starting",
        /// It runs.
        Running = "running",
        /// Its processors stand still.
        Paused = "paused",
        /// It was asked to end.
        Stopping = "stopping",
        /// It ended.
        Ended = "ended",
    }

    /// Why a guest's processors stand still.
    pub enum PauseReason {
        /// It was asked for, or it was started like this.
        Asked = "asked",
        /// A disk failed.
        IoError = "ioError",
        /// The watchdog.
        Watchdog = "watchdog",
        /// Something else.
        Other = "other",
    }

    /// How a guest ended.
    pub enum Cause {
        /// The guest switched itself off, asked to or not.
        Shutdown = "shutdown",
        /// It was reset where that is the end of a run ([`crate::launch::OnReboot::Destroy`]): the guest rebooted, or its
        /// processor gave up (a triple fault).
        Rebooted = "rebooted",
        /// It was killed as asked, or since its grace was over.
        Killed = "killed",
        /// The guest, or what runs it, crashed.
        Crashed = "crashed",
        /// It ended while no worker was running; the cause is unknown.
        Lost = "lost",
    }

    /// Why a call is refused, as far as a client acts differently on it.
    pub enum RefusedKind {
        /// The call is invalid at any time: another version, wrong form, impossible values.
        Invalid = "invalid",
        /// Not in this state: no guest, another guest, already ended.
        State = "state",
        /// libvirt, QEMU or the guest agent refused it.
        Failed = "failed",
    }
}

impl Cause {
    /// The code that the launcher ends with: what a cluster calls succeeded is 0, what it calls failed 1.
    pub fn code(self) -> u8 {
        match self {
            Self::Shutdown | Self::Killed => 0,
            // It wanted to go on, or could not.
            Self::Rebooted | Self::Crashed | Self::Lost => 1,
        }
    }
}

/// How a guest is, as of its hypervisor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// Its state.
    #[serde(deserialize_with = "read::state")]
    pub state: State,
    /// Why it stands still.
    #[serde(default, deserialize_with = "read::reason")]
    pub reason: Option<PauseReason>,
    /// UUID of the run, from its launch document.
    #[serde(default)]
    pub uid: Option<String>,
    /// Its end.
    #[serde(default)]
    pub exit: Option<Exit>,
    /// Whether its agent is there.
    #[serde(default)]
    pub agent: bool,
    /// Its vCPUs and memory; `None`: there is no guest.
    #[serde(default)]
    pub size: Option<Size>,
    /// Its disks' names in the guest, such as `vda`, by their names here.
    #[serde(default)]
    pub targets: BTreeMap<String, String>,
    /// Whether a request froze its filesystems.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub frozen: bool,
    /// The last dump of its memory that this worker began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dump: Option<Dump>,
}

/// A dump of a guest's memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Dump {
    /// Its file.
    pub path: String,
    /// Whether it is over.
    pub ended: bool,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The vCPUs and memory of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Size {
    /// Processors that are plugged in.
    pub processors: u32,
    /// Bytes of memory that it has taken.
    pub memory: u64,
}

/// How a guest ended, and when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Exit {
    /// UUID of the run.
    pub uid: String,
    /// How.
    #[serde(deserialize_with = "read::cause")]
    pub cause: Cause,
    /// [`Cause::code`].
    pub code: u8,
    /// Seconds since 1970.
    pub time: u64,
}

/// A message of the launcher.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Message {
    /// The versions that the launcher speaks.
    Hello {
        /// Any order.
        versions: Vec<u32>,
    },
    /// The request succeeded.
    Answer {
        /// The call's.
        id: u64,
        /// The result.
        answer: Answer,
    },
    /// It is not done.
    Refused {
        /// The call's; 0 when it could not be read.
        id: u64,
        /// Why, to act on.
        #[serde(deserialize_with = "read::refused")]
        kind: RefusedKind,
        /// Why, to read.
        message: String,
    },
    /// Something happened.
    Event(Event),
}

/// The result of a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Answer {
    /// It is done.
    Done,
    /// The guest is there.
    Launched {
        /// Whether this request started it.
        new: bool,
        /// Where its devices are, for the next launch.
        layout: Layout,
        /// The CPU model for the next launch, where the document leaves it open.
        #[serde(default)]
        processor: Option<NamedCpu>,
    },
    /// How it is.
    Status(Status),
    /// Where its devices are now, for the next launch.
    Layout(Layout),
    /// QEMU, firmware, KVM.
    Facts(Facts),
    /// The guest as libvirt describes it: XML.
    Description(String),
    /// The answer of the guest agent: JSON text.
    Agent(String),
    /// Its counters.
    Stats(Stats),
    /// The screen.
    Screenshot {
        /// Such as `image/png`.
        mime: String,
        /// The picture, in base64.
        content: String,
    },
}

/// Number in [`Stats`]: how many CPUs of the host each vCPU may run on, added up.
pub const AFFINITY: &str = "vcpu.affinity";

/// Counters of a guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Stats {
    /// Numbers by libvirt's names and in its units (virConnectGetAllDomainStats), such as `cpu.time` and `block.0.rd.bytes`.
    /// All that libvirt has: a launcher is as old as its guest, and later releases of its clients may read more of them.
    /// [`AFFINITY`] is the launcher's own.
    pub numbers: BTreeMap<String, u64>,
    /// Names of disks and interfaces in the launch document, by the start of libvirt's names, such as `block.0` or `net.1`.
    pub names: BTreeMap<String, String>,
}

/// QEMU, firmware and KVM on a launcher's machine or in its pod, as the user that the guest runs as finds them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Facts {
    /// The QEMU program.
    pub emulator: Option<String>,
    /// The machine type that `q35` stands for, with its version.
    pub machine: Option<String>,
    /// OVMF's code and variables.
    pub ovmf: Option<(String, String)>,
    /// The same for secure boot.
    pub ovmf_secure: Option<(String, String)>,
    /// KVM.
    pub kvm: Kvm,
    /// Whether a disk of [`Request::Facts`] can be opened past the page cache; one that cannot be opened is not in it.
    pub direct: BTreeMap<String, bool>,
}

/// Whether KVM runs guests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Kvm {
    /// The device opens for the guest's user.
    pub opens: bool,
    /// A guest runs under it.
    pub works: bool,
    /// Why, for people: what was tried, or why guests run in software.
    pub reason: String,
    /// Advice, where it does not work.
    pub advice: String,
}

/// The events of a guest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Event {
    /// It does something else than before, [`Status::exit`] included.
    Status(Status),
    /// It rebooted.
    Rebooted,
    /// Its watchdog barked.
    Watchdog,
    /// A disk failed.
    IoError {
        /// The disk's alias.
        disk: String,
        /// `enospc`, or nothing that is known.
        reason: String,
    },
    /// It let go of a device.
    Detached {
        /// The device's alias, such as `disk-NAME`.
        device: String,
    },
    /// Its agent came or went.
    Agent {
        /// Whether it is there.
        connected: bool,
    },
}

impl Call {
    /// A call of the version that was agreed on.
    ///
    /// # Errors
    /// [`FrameError::NotInVersion`].
    pub fn new(version: u32, id: u64, request: Request) -> Result<Self, FrameError> {
        let since_two = match &request {
            Request::Facts { .. } => Some("facts"),
            Request::Insert { .. } => Some("insert"),
            Request::Eject(_) => Some("eject"),
            Request::Describe => Some("describe"),
            Request::Stats => Some("stats"),
            Request::Dump { .. } => Some("dump"),
            Request::Freeze { .. } => Some("freeze"),
            Request::Thaw => Some("thaw"),
            Request::Launch(_)
            | Request::Status
            | Request::Watch
            | Request::Pause
            | Request::Unpause
            | Request::Shutdown { .. }
            | Request::Kill
            | Request::SoftReboot
            | Request::Reset
            | Request::AttachDisk(_)
            | Request::DetachDisk(_)
            | Request::ResizeDisk { .. }
            | Request::Grow { .. }
            | Request::AttachInterface(_)
            | Request::DetachInterface(_)
            | Request::Agent { .. }
            | Request::Screenshot => None,
        };
        if let Some(request) = since_two.filter(|_| version < 2) {
            return Err(FrameError::NotInVersion { version, request });
        }
        Ok(Self { version, id, request })
    }

    /// Reads a call: its version first, then its form. The number of one that is refused is returned when it has one.
    ///
    /// # Errors
    /// See [`FrameError`].
    pub fn read(json: &[u8]) -> Result<Self, (u64, FrameError)> {
        #[derive(Deserialize)]
        struct Numbered {
            version: u64,
            #[serde(default)]
            id: u64,
        }
        let malformed = |error: serde_json::Error| FrameError::Malformed(error.to_string());
        let head: Numbered = serde_json::from_slice(json).map_err(|error| (0, malformed(error)))?;
        if !VERSIONS.iter().any(|version| u64::from(*version) == head.version) {
            return Err((head.id, FrameError::Version(head.version)));
        }
        serde_json::from_slice(json).map_err(|error| (head.id, malformed(error)))
    }
}

/// A message as a frame.
///
/// # Errors
/// It is too long.
pub fn frame(message: &impl Serialize) -> Result<Vec<u8>, FrameError> {
    let mut frame = vec![0; 4];
    serde_json::to_writer(&mut frame, message).map_err(|error| FrameError::Malformed(error.to_string()))?;
    let length = frame.len() - 4;
    match u32::try_from(length) {
        Ok(short) if length <= FRAME_MAX => frame[..4].copy_from_slice(&short.to_be_bytes()),
        _ => return Err(FrameError::TooLong(length)),
    }
    Ok(frame)
}

/// The length of the JSON that follows a frame's first four bytes.
///
/// # Errors
/// It is too long.
pub fn length(head: [u8; 4]) -> Result<usize, FrameError> {
    let length = usize::try_from(u32::from_be_bytes(head)).unwrap_or(usize::MAX);
    if length <= FRAME_MAX { Ok(length) } else { Err(FrameError::TooLong(length)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn framed_messages_are_read() {
        let document = RawValue::from_string("{\"version\": 7}".to_owned()).unwrap();
        let call = Call::new(2, 5, Request::Launch(document)).unwrap();
        let framed = frame(&call).unwrap();
        let (head, json) = framed.split_at(4);
        assert_eq!(length(head.try_into().unwrap()).unwrap(), json.len());
        let read = Call::read(json).unwrap();
        assert_eq!((read.version, read.id), (2, 5));
        let Request::Launch(document) = read.request else { panic!("{read:?}") };
        assert_eq!(document.get(), "{\"version\": 7}", "the document is not looked at");
    }

    #[test]
    fn another_version_is_reported_before_any_other_error() {
        let (id, error) = Call::read(b"{\"version\": 9, \"id\": 9, \"request\": \"newer\"}").unwrap_err();
        assert_eq!((id, error.clone()), (9, FrameError::Version(9)));
        assert!(error.to_string().contains("version 9; this program speaks versions [1, 2]"), "{error}");
    }

    #[test]
    fn invalid_calls_are_refused() {
        for (json, wanted) in [
            ("", 0),
            ("[]", 0),
            ("{\"version\": 1}", 0),
            ("{\"version\": 1, \"id\": 3, \"request\": \"dance\"}", 3),
            ("{\"version\": 1, \"id\": 3, \"request\": {\"shutdown\": {\"graceSeconds\": -1}}}", 3),
        ] {
            let (id, error) = Call::read(json.as_bytes()).unwrap_err();
            assert_eq!(id, wanted, "{json}");
            assert!(matches!(error, FrameError::Malformed(_)), "{json}: {error}");
        }
    }

    #[test]
    fn lengths_are_bounded_before_anything_is_read() {
        assert_eq!(length([0, 0, 1, 2]), Ok(258));
        assert_eq!(length([0xff; 4]), Err(FrameError::TooLong(u32::MAX as usize)));
        let long = Message::Refused { id: 1, kind: RefusedKind::Failed, message: "x".repeat(FRAME_MAX) };
        assert!(matches!(frame(&long), Err(FrameError::TooLong(_))));
    }

    #[test]
    fn an_answer_may_take_as_long_as_the_guest_agent_may() {
        let seconds = |request: Request| request.answer_max().as_secs();
        assert_eq!(seconds(Request::Status), 60);
        assert_eq!(seconds(Request::Agent { command: String::new(), timeout_seconds: 10 }), 70);
        assert_eq!(seconds(Request::Freeze { seconds: 1 }), 240);
        assert_eq!(seconds(Request::Thaw), 120);
        let document = RawValue::from_string("{}".to_owned()).unwrap();
        assert_eq!(seconds(Request::Launch(document)), 600);
    }
}
