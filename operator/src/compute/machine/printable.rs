//! Facts for `status.printableStatus`; the word itself is decided by [`virt::printable`].

use virt::printable::{self, Facts};

use super::plan::Observed;
use crate::compute::volumes::Volume;
use crate::view::{Instance, MigrationState, is_false, is_true};

/// The word. `failures`: starts in a row that failed, `creating`: an instance is created now.
pub(super) fn printable(observed: &Observed<'_>, failures: u32, creating: bool) -> &'static str {
    let volumes = || observed.volumes.iter().chain(&observed.templates);
    let unbound =
        || observed.volumes.iter().any(|volume| volume.claim.is_some_and(|claim| !claim.is_bound()));
    let set_to_start = creating || observed.own_instance().is_some() || observed.start_wanted();
    printable::printable(&Facts {
        deleting: observed.machine.metadata.deleting(),
        instance: observed.own_instance().map(instance),
        creating,
        missing: false,
        broken: volumes().any(Volume::is_broken),
        provisioning: volumes().any(Volume::is_provisioning),
        unbound: set_to_start && unbound(),
        failures,
        strategy: observed.strategy(),
    })
}

fn instance(instance: &Instance) -> printable::Instance<'_> {
    let status = &instance.status;
    printable::Instance {
        phase: if status.phase.is_empty() { "Pending" } else { &status.phase },
        deleting: instance.metadata.deleting(),
        paused: is_true(&status.conditions, "Paused").is_some(),
        migrating: status.migration_state.as_ref().is_some_and(MigrationState::active),
        problem: is_false(&status.conditions, "Synchronized"),
        unschedulable: is_false(&status.conditions, "PodScheduled") == Some("Unschedulable"),
        receiver: false,
    }
}
