//! The protocol between `virt-node`'s commands and its daemon: one call and one answer in a connection at a time, framed as
//! the launcher's. A stream (a console, a screen, a port) takes the connection over after its answer.
//!
//! Not here: sockets.

use api::kubevirt::Disk;
use serde::{Deserialize, Serialize};

use virt::finding::Finding;
use virt::validate::SourceDocument;

/// The version that is spoken.
pub(crate) const VERSION: u32 = 2;

/// The requests.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Call {
    /// [`VERSION`].
    pub(crate) version: u32,
    pub(crate) request: Request,
}

/// An object by its kind's name (as in documents), namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Target {
    pub(crate) kind: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
}

/// The kind of request.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
pub(crate) enum Request {
    /// Keep the objects of these documents, each with the name of its text. Answered with [`Answer::Applied`].
    Apply { documents: Vec<SourceDocument> },
    /// All machines, runs and volumes as they are kept. Answered with [`Answer::Objects`].
    List,
    /// The same in a few words each. Answered with [`Answer::Rows`].
    Rows,
    /// One object. Answered with [`Answer::Objects`].
    Get(Target),
    /// Events in a namespace after the event of this number, of one VM where a name is given. Answered with
    /// [`Answer::Events`].
    Events { namespace: String, name: Option<String>, after: u64 },
    /// Start, stop and the like. Answered with [`Answer::Done`].
    Power { namespace: String, name: String, verb: Verb },
    /// Give a machine, or a run without one, the claim or DataVolume `claim` as the volume of `disk`'s name. Answered
    /// with [`Answer::Done`] when it is noted, or, where it is only tried, when it could be.
    AddVolume { namespace: String, name: String, claim: String, disk: Box<Disk>, dry_run: bool },
    /// Take a volume that may come and go away. Answered as for one more.
    RemoveVolume { namespace: String, name: String, volume: String, dry_run: bool },
    /// Take objects away. Answered with [`Answer::Done`] when it is noted.
    Delete { targets: Vec<Target>, grace_seconds: Option<u64> },
    /// Where to send the content of a DataVolume that is filled by an upload. Answered with [`Answer::Upload`].
    Upload { namespace: String, name: String },
    /// One of a guest's streams. Answered with [`Answer::Stream`], and then it is that.
    Stream { namespace: String, name: String, stream: Stream },
}

/// Operations on a VM: virtctl's verbs and flags.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
pub(crate) enum Verb {
    /// `once`: one run; the strategy stays as it is.
    Start {
        paused: bool,
        #[serde(default)]
        once: bool,
    },
    Stop {
        grace_seconds: Option<u64>,
    },
    Restart {
        grace_seconds: Option<u64>,
    },
    Pause,
    Unpause,
    SoftReboot,
    Reset,
}

/// A guest's stream of bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) enum Stream {
    /// Its first serial port. Replaces an existing session.
    Console,
    /// Its screen: VNC.
    Screen,
}

/// The answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub(crate) enum Answer {
    /// It is noted.
    Done,
    /// The change of each object, and the findings about fields.
    Applied { objects: Vec<(Target, Change)>, findings: Vec<(Target, Vec<Finding>)> },
    /// Objects as they are kept.
    Objects(Vec<serde_json::Value>),
    /// Machines and runs without one, and volumes.
    Rows { guests: Vec<GuestRow>, volumes: Vec<VolumeRow> },
    /// Events, the oldest first.
    Events(Vec<Event>),
    /// An upload server at 127.0.0.1; certificates and the client's key are PEM.
    Upload { port: u16, authority: String, certificate: String, key: String },
    /// The stream follows.
    Stream,
    /// It is not done.
    Refused { kind: RefusedKind, message: String },
}

/// A machine, or a run that belongs to none, as `list` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct GuestRow {
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// Seconds since 1970.
    pub(crate) created: u64,
    /// A machine's `printableStatus`, a run's phase.
    pub(crate) state: String,
    /// Status of the condition `Ready`.
    pub(crate) ready: String,
}

/// A claim with its DataVolume, as `list` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct VolumeRow {
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// Seconds since 1970.
    pub(crate) created: u64,
    /// The DataVolume's phase; without one the claim's.
    pub(crate) state: String,
    /// The size that was asked for, as it was written.
    pub(crate) size: String,
    /// The DataVolume's progress, such as `42.0%`; empty without one.
    pub(crate) progress: String,
}

/// The change of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Change {
    Created,
    Configured,
    Unchanged,
}

impl Change {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Configured => "configured",
            Self::Unchanged => "unchanged",
        }
    }
}

/// Why a call is refused, as far as a command acts differently on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum RefusedKind {
    /// There is no such object.
    Missing,
    /// Not in this state.
    State,
    /// The request is invalid.
    Invalid,
    /// An operation on this machine failed.
    Failed,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Event {
    /// Counted from 1.
    pub(crate) number: u64,
    /// Seconds since 1970.
    pub(crate) time: u64,
    /// Kind of the object.
    pub(crate) kind: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// Whether a person should look at it.
    pub(crate) warning: bool,
    /// One CamelCase word.
    pub(crate) reason: String,
    /// A sentence.
    pub(crate) message: String,
}
