//! Whether a VM has what its preference requires. Pure.

use api::kubevirt::VirtualMachineInstanceSpec as Spec;
use api::resource::Quantity;

use super::{Flavor, size};
use crate::resolve;

/// Missing resource of a VM, as field below `spec` and text; `None`: it has what its preference requires. `spec` is that of the
/// template, before the instance type is applied.
pub fn unmet(flavor: &Flavor, spec: &Spec) -> Option<(String, String)> {
    let instancetype = flavor.instancetype.as_ref();
    if let Some(text) = instancetype
        .and_then(|instancetype| size::unspreadable(instancetype.cpu.guest, flavor.preference.as_ref()))
    {
        return Some(("instancetype".to_owned(), text));
    }
    let required = flavor.preference.as_ref()?.requirements.as_ref()?;
    if let Some(cpu) = &required.cpu {
        let wanted = cpu.guest;
        let (field, has, source) = match instancetype {
            Some(instancetype) => ("instancetype", instancetype.cpu.guest, "instance type"),
            None => {
                let (sockets, cores, threads) = resolve::topology(spec);
                let all = sockets.saturating_mul(cores).saturating_mul(threads);
                ("template.spec.domain.cpu", all, "VirtualMachine")
            }
        };
        if has < wanted {
            let text = format!(
                "insufficient CPU resources of {has} vCPU provided by {source}, preference requires {wanted} vCPU"
            );
            return Some((field.to_owned(), text));
        }
    }
    if let Some(memory) = &required.memory {
        let wanted = &memory.guest;
        let given = |amount: Option<&Quantity>| amount.cloned().unwrap_or_else(|| Quantity("0".to_owned()));
        let (field, has, source) = match instancetype {
            Some(instancetype) => ("instancetype", instancetype.memory.guest.clone(), "instance type"),
            None => ("template.spec.domain.memory", given(guest_memory(spec)), "VirtualMachine"),
        };
        if has.bytes().unwrap_or(0) < wanted.bytes().unwrap_or(0) {
            let text = format!(
                "insufficient Memory resources of {} provided by {source}, preference requires {}",
                has.0, wanted.0
            );
            return Some((field.to_owned(), text));
        }
    }
    let asked = spec.architecture.as_deref().filter(|asked| !asked.is_empty());
    if let (Some(wanted), Some(asked)) = (&required.architecture, asked)
        && wanted != asked
    {
        let text = format!(
            "preference requires architecture {wanted} but {asked} is being requested by the VirtualMachine"
        );
        return Some(("template.spec.architecture".to_owned(), text));
    }
    None
}

/// Memory of a template: its own field, or what it requests.
fn guest_memory(spec: &Spec) -> Option<&Quantity> {
    let guest = spec.domain.memory.as_ref().and_then(|memory| memory.guest.as_ref());
    let resources = spec.domain.resources.as_ref();
    guest.or_else(|| {
        let resources = resources?;
        resources.requests.get("memory").or_else(|| resources.limits.get("memory"))
    })
}
