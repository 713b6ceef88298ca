//! Rules of upstream's admission for guests that ask for CPUs of the host to themselves, in its words. Pure.
//!
//! Not here: the pod's requests (the operator), pinning (the launcher).

use api::kubevirt::VirtualMachineInstanceSpec;
use api::quantity;

use crate::resolve::{is_dedicated, topology};

/// Most threads of a core: as many as cores of hosts have.
const THREADS_MAX: u32 = 2;

/// Whole units of a resource, rounded up, and thousandths; none if it is not given or is no quantity.
#[derive(Clone, Copy, Default)]
struct Amount {
    whole: u64,
    thousandths: u64,
}

/// Amounts of a resource in a spec's requests and limits.
fn amounts(spec: &VirtualMachineInstanceSpec, name: &str) -> [Amount; 2] {
    let Some(resources) = &spec.domain.resources else { return [Amount::default(); 2] };
    [&resources.requests, &resources.limits].map(|list| {
        let text = list.get(name).map_or("0", |amount| amount.0.as_str());
        Amount {
            whole: quantity::bytes(text).unwrap_or_default(),
            thousandths: quantity::thousandths(text).unwrap_or_default(),
        }
    })
}

/// Fields of an instance's spec that are refused, and why. `at` is the spec's path.
pub fn refused(spec: &VirtualMachineInstanceSpec, at: &str) -> Vec<(String, String)> {
    let path = |field: &str| format!("{at}.domain.{field}");
    let Some(cpu) = &spec.domain.cpu else { return Vec::new() };
    let dedicated = is_dedicated(spec);
    let mut refused = Vec::new();
    if cpu.isolate_emulator_thread == Some(true) && !dedicated {
        let text = "IsolateEmulatorThread should be only set in combination with DedicatedCPUPlacement";
        refused.push((path("cpu.isolateEmulatorThread"), text.to_owned()));
    }
    let numa = path("cpu.numa.guestMappingPassthrough");
    if cpu.numa.as_ref().is_some_and(|numa| numa.guest_mapping_passthrough.is_some()) {
        let strategy = format!("when NUMA topology strategy is set in {numa}");
        if !dedicated {
            let field = path("cpu.dedicatedCpuPlacement");
            refused.push((numa.clone(), format!("{field} must be set to true {strategy}")));
        }
        if spec.domain.memory.as_ref().is_none_or(|memory| memory.hugepages.is_none()) {
            refused.push((numa, format!("{} must be requested {strategy}", path("memory.hugepages"))));
        }
    }
    if dedicated {
        refused.extend(of_resources(spec, &path));
        let threads = cpu.threads.unwrap_or(1);
        if threads > THREADS_MAX {
            let text = format!(
                "Not more than two threads must be provided at {} (got {threads}) when DedicatedCPUPlacement is true",
                path("cpu.threads")
            );
            refused.push((path("cpu.dedicatedCpuPlacement"), text));
        }
    }
    refused
}

/// The same for the resources of a guest with dedicated CPUs.
fn of_resources(spec: &VirtualMachineInstanceSpec, path: &impl Fn(&str) -> String) -> Vec<(String, String)> {
    let mut refused = Vec::new();
    let (requests, limits) = (path("resources.requests.cpu"), path("resources.limits.cpu"));
    let cpus = amounts(spec, "cpu");
    for (list, field, amount) in [("requests", &requests, cpus[0]), ("limits", &limits, cpus[1])] {
        if amount.whole > 0 && amount.whole.saturating_mul(1000) != amount.thousandths {
            // The spelling is upstream's.
            refused.push((field.clone(), format!("provided resources CPU {list} must be an interger")));
        }
    }
    let [requested, limited] = amounts(spec, "memory").map(|amount| amount.whole);
    if requested > 0 && limited > 0 && requested != limited {
        let field = path("resources.requests.memory");
        let text = format!("{field} must be equal to {}", path("resources.limits.memory"));
        refused.push((field, text));
    }
    let [requested, limited] = cpus.map(|amount| amount.whole);
    let placement = path("cpu.dedicatedCpuPlacement");
    if requested > 0 && limited > 0 && requested != limited {
        let text = format!("{requests} or {limits} must be equal when DedicatedCPUPlacement is true ");
        refused.push((placement.clone(), text));
    }
    let (sockets, cores, threads) = topology(spec);
    let vcpus = u64::from(sockets).saturating_mul(cores.into()).saturating_mul(threads.into());
    if (requested > 0 || limited > 0) && requested != vcpus && limited != vcpus {
        let text = format!(
            "{requests} or {limits} must not be provided at the same time with {} when DedicatedCPUPlacement is true ",
            path("cpu.cores")
        );
        refused.push((placement, text));
    }
    refused
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn specs_are_refused_as_upstream_refuses_them() {
        let pinned = |more: Value| {
            let mut cpu = json!({"cores": 2, "dedicatedCpuPlacement": true});
            cpu.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            cpu
        };
        let huge = json!({"hugepages": {"pageSize": "2Mi"}});
        let numa = json!({"guestMappingPassthrough": {}});
        let none: [(&str, &str); 0] = [];
        for (cpu, resources, memory, wanted) in [
            (json!({"cores": 2}), json!({"requests": {"cpu": "1500m"}}), json!({}), none.to_vec()),
            (pinned(json!({"threads": 2, "isolateEmulatorThread": true})), json!({}), json!({}), vec![]),
            (pinned(json!({})), json!({"requests": {"cpu": 2}, "limits": {"cpu": "2"}}), json!({}), vec![]),
            (pinned(json!({"numa": numa})), json!({}), huge.clone(), vec![]),
            (json!({"numa": {}}), json!({}), json!({}), vec![]),
            (
                json!({"isolateEmulatorThread": true}),
                json!({}),
                json!({}),
                vec![(
                    "cpu.isolateEmulatorThread",
                    "IsolateEmulatorThread should be only set in combination with DedicatedCPUPlacement",
                )],
            ),
            (
                json!({"numa": numa}),
                json!({}),
                json!({}),
                vec![
                    (
                        "cpu.numa.guestMappingPassthrough",
                        "spec.domain.cpu.dedicatedCpuPlacement must be set to true when NUMA topology strategy is set in \
                         spec.domain.cpu.numa.guestMappingPassthrough",
                    ),
                    (
                        "cpu.numa.guestMappingPassthrough",
                        "spec.domain.memory.hugepages must be requested when NUMA topology strategy is set in \
                         spec.domain.cpu.numa.guestMappingPassthrough",
                    ),
                ],
            ),
            (
                pinned(json!({"cores": 1, "threads": 3})),
                json!({}),
                json!({}),
                vec![(
                    "cpu.dedicatedCpuPlacement",
                    "Not more than two threads must be provided at spec.domain.cpu.threads (got 3) when \
                     DedicatedCPUPlacement is true",
                )],
            ),
            (
                pinned(json!({})),
                json!({"requests": {"cpu": "1500m", "memory": "1Gi"}, "limits": {"memory": "2Gi"}}),
                json!({}),
                vec![
                    ("resources.requests.cpu", "provided resources CPU requests must be an interger"),
                    (
                        "resources.requests.memory",
                        "spec.domain.resources.requests.memory must be equal to spec.domain.resources.limits.memory",
                    ),
                ],
            ),
            (
                pinned(json!({})),
                json!({"requests": {"cpu": "2"}, "limits": {"cpu": "2001m"}}),
                json!({}),
                vec![
                    ("resources.limits.cpu", "provided resources CPU limits must be an interger"),
                    (
                        "cpu.dedicatedCpuPlacement",
                        "spec.domain.resources.requests.cpu or spec.domain.resources.limits.cpu must be equal when \
                         DedicatedCPUPlacement is true ",
                    ),
                ],
            ),
            (
                pinned(json!({})),
                json!({"limits": {"cpu": "4"}}),
                json!({}),
                vec![(
                    "cpu.dedicatedCpuPlacement",
                    "spec.domain.resources.requests.cpu or spec.domain.resources.limits.cpu must not be provided at the \
                     same time with spec.domain.cpu.cores when DedicatedCPUPlacement is true ",
                )],
            ),
        ] {
            let spec = json!({"domain": {"cpu": cpu, "resources": resources, "memory": memory}});
            let found = refused(&serde_json::from_value(spec.clone()).unwrap(), "spec");
            let wanted: Vec<(String, String)> = wanted
                .into_iter()
                .map(|(field, text)| (format!("spec.domain.{field}"), text.to_owned()))
                .collect();
            assert_eq!(found, wanted, "{spec}");
        }
    }
}
