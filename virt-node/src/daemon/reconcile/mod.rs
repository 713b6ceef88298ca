//! Decisions about one object at a time: from the facts that are observed of it to the actions that bring it towards its
//! spec. Pure: the facts are collected, and the actions executed, by the controller.
//!
//! ```text
//! store, memory, directories ─observe─► Observed ─reconcile─► Vec<Action> ─execute─► store, events, jobs
//!                                                                 ▲                             │
//!                                              end of a job ─ended┘◄────────────────────────────┘
//! ```
//!
//! The steps of VMs and their runs are those of [`virt::machine`] and [`virt::run`], as in the operator.

pub(super) mod claim;
pub(super) mod data_volume;
pub(super) mod instance;
pub(super) mod machine;

use api::cdi::DataVolume;
use api::core::PersistentVolumeClaim;
use api::kubevirt::{VirtualMachine, VirtualMachineInstance};

use super::import::Origin;

/// An object to store.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Object {
    Machine(Box<VirtualMachine>),
    Instance(Box<VirtualMachineInstance>),
    DataVolume(Box<DataVolume>),
    Claim(Box<PersistentVolumeClaim>),
}

/// A disk of a guest that is up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shown {
    /// UID of the run.
    pub(super) run: String,
    pub(super) disk: String,
}

/// A step of a claim's volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ClaimAction {
    /// Make it, with the blocks of the claim with this UID.
    Make { source: Option<String> },
    /// Expand it, and the disks of guests that have it.
    Grow(Vec<Shown>),
    /// Remove it.
    Remove,
}

/// A step of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RunAction {
    /// Start its launcher, and its guest unless it is only to look after one that may be there.
    Start { launch: bool },
    /// Change the devices of its guest to those of its spec.
    MoveDevices,
    /// Ask its guest to end.
    ShutDown,
    /// Kill what is left of its guest.
    Kill,
    /// Remove what was made for it.
    Clear,
    /// Remove it, and its number and addresses where these are its own.
    Remove,
}

/// One step for the object that is reconciled.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Action {
    /// Store an object.
    Put(Object),
    /// Store a new object in the namespace of the one that is reconciled: it gets a UID.
    Create(Object),
    /// Remove the object; nothing of it is left.
    Remove,
    /// Report an event of it.
    Event { warning: bool, reason: &'static str, text: String },
    /// Reconcile it again at this time.
    Look(u64),
    /// Delay the next try.
    Fail,
    /// Failed tries do not count any more.
    Succeed,
    /// End its job.
    Cancel,
    /// A step for the claim's volume.
    Claim(ClaimAction),
    /// Fill the DataVolume's claim.
    FillVolume(Box<Origin>),
    /// Have a run end, within its grace.
    EndRun(Box<VirtualMachineInstance>),
    /// Give the guest of the run with this UID the interfaces of its spec.
    MendLater { run: String },
    /// A step for the run's launcher.
    Run(RunAction),
    /// Remove what is left of the VM's networks.
    RemoveNetworks,
    /// Remove the VM, and its number, addresses and images.
    RemoveMachine,
}

impl Action {
    fn event(reason: &'static str, text: impl Into<String>) -> Self {
        Self::Event { warning: false, reason, text: text.into() }
    }

    fn warning(reason: &'static str, text: impl Into<String>) -> Self {
        Self::Event { warning: true, reason, text: text.into() }
    }
}

/// Whether a job of the object may begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Attempt {
    /// A job of it runs or waits.
    pub(super) busy: bool,
    /// Time of the next try after one that failed.
    pub(super) retry: Option<u64>,
    pub(super) now: u64,
}

impl Attempt {
    /// Whether it may begin now; if only later, the look at that time is one of the actions.
    fn may_begin(&self, actions: &mut Vec<Action>) -> bool {
        if self.busy {
            return false;
        }
        let later = self.retry.filter(|retry| *retry > self.now);
        actions.extend(later.map(Action::Look));
        later.is_none()
    }
}
