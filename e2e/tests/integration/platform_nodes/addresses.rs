//! The MAC pool as the operator deployed it: many VMs at once, by one replica and by two, an address that another VM has, by
//! each policy, and a range without a free address.

use std::collections::BTreeSet;
use std::fs;

use serde_json::{Value, json};

use crate::platform::hyperconverged::OBJECT;
use crate::platform::machines::machine;
use crate::platform::place::{MACHINES, PLACE};

const NAMESPACE: &str = "addresses";
const PLATFORM: &str = operator::defaults::NAMESPACE;
/// Clients that create VMs at the same time.
const CLIENTS: usize = 100;
/// The address that two VMs are given.
const GIVEN: &str = "0a:00:00:00:00:01";
/// A range of two addresses, and how they begin.
const SMALL: (&str, &str) = ("02:ee:00:00:00:00", "02:ee:00:00:00:01");
const OF_SMALL: &str = "02:ee:00:00:00:";
const MAC: &str = "/spec/template/spec/domain/devices/interfaces/0/macAddress";

/// A VM that does not run, with this address.
fn vm(name: &str, mac: Option<&str>) -> Value {
    let mut vm = machine(name, "Halted", &json!({"emptyDisk": {"capacity": "1Mi"}}));
    if let Some(mac) = mac {
        vm["spec"]["template"]["spec"]["domain"]["devices"]["interfaces"][0]["macAddress"] = json!(mac);
    }
    vm
}

/// Creates a VM: its address and the warnings, or why it is refused.
fn create(namespace: &str, vm: &Value) -> Result<(String, String), String> {
    let file = PLACE.cluster.place().path("addresses.json");
    fs::write(&file, vm.to_string()).unwrap();
    let mut command = PLACE.cluster.kubectl();
    let run = command.args(["-n", namespace, "create", "-o", "json", "-f"]).arg(&file).output().unwrap();
    let said = String::from_utf8_lossy(&run.stderr).into_owned();
    if !run.status.success() {
        return Err(said);
    }
    let made: Value = serde_json::from_slice(&run.stdout).unwrap();
    Ok((made.pointer(MAC).unwrap().as_str().unwrap().to_owned(), said))
}

/// Creates a VM until the answer is as wanted: a changed policy or range is heard of soon.
#[track_caller]
fn until(
    what: &str,
    namespace: &str,
    vm: &Value,
    wanted: impl Fn(&Result<(String, String), String>) -> bool,
) -> Result<(String, String), String> {
    PLACE.until(namespace, what, || {
        let made = create(namespace, vm);
        if wanted(&made) {
            return Some(made);
        }
        println!("{what}: {made:?}");
        if made.is_ok() {
            PLACE.delete(MACHINES, namespace, vm["metadata"]["name"].as_str().unwrap());
        }
        None
    })
}

fn set_range(range: &Value) {
    let patch = json!({"spec": {"networking": {"kubeMacPoolConfiguration": range}}}).to_string();
    PLACE.kubectl(&["-n", PLATFORM, "patch", OBJECT, "--type=merge", "-p", &patch]).unwrap();
}

/// Creates halted VMs, as many at a time as clients exist. The MAC pool gives each an address of its own, other than those of
/// the namespace's other VMs.
pub(crate) fn create_at_once(namespace: &str, count: usize) {
    std::thread::scope(|scope| {
        for first in 0..CLIENTS {
            scope.spawn(move || {
                for number in (first..count).step_by(CLIENTS) {
                    PLACE.create(MACHINES, namespace, &vm(&format!("halted{number}"), None));
                }
            });
        }
    });
    let machines = PLACE.list(MACHINES, namespace);
    let macs: BTreeSet<&str> = machines.iter().map(|vm| vm.pointer(MAC).unwrap().as_str().unwrap()).collect();
    assert!(machines.len() >= count && macs.len() == machines.len(), "{} VMs: {macs:?}", machines.len());
}

/// With two nodes the pool has a replica on each and a PodDisruptionBudget; both give addresses at the same time.
pub(crate) fn are_unique_with_two_replicas() {
    let namespace = "addresses-of-two";
    PLACE.until(PLATFORM, "two replicas of the MAC pool are ready", || {
        let object = "deployment/kubemacpool-mac-controller-manager";
        let counts = "jsonpath={.spec.replicas} {.status.readyReplicas} {.status.updatedReplicas}";
        (PLACE.kubectl(&["-n", PLATFORM, "get", object, "-o", counts]).ok()? == "2 2 2").then_some(())
    });
    let budget = ["-n", PLATFORM, "get", "poddisruptionbudget/kubemacpool-mac-controller-manager"];
    PLACE.kubectl(&budget).unwrap();
    PLACE.namespace(namespace);
    create_at_once(namespace, CLIENTS);
    PLACE.remove_namespace(namespace);
}

/// Creates VMs with one address, each in a namespace with a policy.
fn duplicates(start: &str) {
    let prefix = &start[..8];
    let (mac, _) = create(NAMESPACE, &vm("given", Some(GIVEN))).unwrap();
    assert_eq!(mac, GIVEN);
    // Without the VM's name, which users of another namespace need not know.
    let used = "is in use";
    for policy in ["allow", "reject", "rewrite"] {
        let namespace = format!("addresses-{policy}");
        PLACE.namespace(&namespace);
        let annotation = format!("macpool.ferrovirt.io/duplicates={policy}");
        PLACE.kubectl(&["annotate", "namespace", &namespace, &annotation]).unwrap();
        let twin = vm("twin", Some(GIVEN));
        let made = until(&format!("{policy} counts"), &namespace, &twin, |made| match (policy, made) {
            ("reject", Err(why)) => why.contains("duplicate MAC address") && why.contains(used),
            ("allow", Ok((mac, warnings))) => mac == GIVEN && warnings.contains(used),
            ("rewrite", Ok((mac, warnings))) => mac.starts_with(prefix) && warnings.contains(used),
            _ => false,
        });
        println!("an address of another VM, {policy}: {made:?}");
        PLACE.remove_namespace(&namespace);
    }
}

pub(crate) fn follow_their_policy_and_run_out() {
    PLACE.namespace(NAMESPACE);
    let map = ["-n", PLATFORM, "get", "configmap/kubemacpool-mac-range-config", "-o", "json"];
    let before: Value = serde_json::from_str(&PLACE.kubectl(&map).unwrap()).unwrap();
    let (start, end) = (&before["data"]["RANGE_START"], &before["data"]["RANGE_END"]);
    let text = start.as_str().unwrap();
    duplicates(text);

    // The range has two addresses: a third VM is refused until one of them is free.
    set_range(&json!({"rangeStart": SMALL.0, "rangeEnd": SMALL.1}));
    let of_range = |made: &Result<(String, String), String>| {
        made.as_ref().is_ok_and(|made| made.0.starts_with(OF_SMALL))
    };
    until("the range is small", NAMESPACE, &vm("small0", None), of_range).unwrap();
    assert!(of_range(&create(NAMESPACE, &vm("small1", None))));
    let why = create(NAMESPACE, &vm("small2", None)).unwrap_err();
    assert!(why.contains("no MAC address is free") && why.contains("has 2 addresses"), "{why}");
    PLACE.delete(MACHINES, NAMESPACE, "small1");
    until("the address of a VM that is gone is given again", NAMESPACE, &vm("small2", None), of_range)
        .unwrap();

    // Without a range in HyperConverged the one before stays.
    set_range(&json!({"rangeStart": start, "rangeEnd": end}));
    let large = |made: &Result<(String, String), String>| {
        made.as_ref().is_ok_and(|made| made.0.starts_with(&text[..8]))
    };
    until("the range is large again", NAMESPACE, &vm("large", None), large).unwrap();
    set_range(&Value::Null);
    PLACE.remove_namespace(NAMESPACE);
}
