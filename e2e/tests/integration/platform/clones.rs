//! VMs with DataVolumes cloned from another namespace: the VM's ServiceAccount needs the right, and the operator's
//! own account gets no clone without a token for it. And clones where the node's agent makes the volumes.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use api::upload::token::Grant;
use cluster::Resource;
use e2e::storage::POOL;
use operator::storage::clone::authorize::Origin;
use operator::storage::clone::token::{self, Target};
use operator::storage::keys::{SECRET, SigningKeys};
use serde_json::{Value, json};

use crate::platform::machines::machine;
use crate::platform::place::{CLAIMS, DATA_SOURCES, DATA_VOLUMES, EVENTS, MACHINES, PLACE, SECRETS};
use crate::storage::authorization::{USERS, User};
use crate::storage::clones::{assert_shared, fill};

/// Where the platform is.
const PLATFORM: &str = "kubevirt-hyperconverged";
/// Namespace of the source.
const GOLDEN: &str = "clones-golden";
/// Namespace of the VMs.
const SPACE: &str = "clones-vms";

/// A DataVolume with a source, bound at once.
fn volume(name: &str, source: &Value) -> Value {
    json!({
        "apiVersion": "cdi.kubevirt.io/v1beta1",
        "kind": "DataVolume",
        "metadata": {"name": name, "annotations": {"cdi.kubevirt.io/storage.bind.immediate.requested": ""}},
        "spec": {
            "source": source,
            "storage": {
                "storageClassName": "hostpath-csi", "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "64Mi"}},
            },
        },
    })
}

fn golden() -> Value {
    json!({"pvc": {"namespace": GOLDEN, "name": "golden"}})
}

/// A VM that does not run, with a DataVolume of its name.
fn cloning(name: &str, account: &str, source: &Value) -> Value {
    let mut vm = machine(name, "Halted", &json!({"dataVolume": {"name": name}}));
    let mut template = volume(name, source);
    template.as_object_mut().unwrap().retain(|field, _| field == "metadata" || field == "spec");
    vm["spec"]["dataVolumeTemplates"] = json!([template]);
    if !account.is_empty() {
        vm["spec"]["template"]["spec"]["serviceAccountName"] = json!(account);
    }
    vm
}

fn create(name: &str, account: &str) {
    PLACE.create(MACHINES, SPACE, &cloning(name, account, &golden()));
}

/// A VM whose DataVolume names a DataSource and no size.
fn create_from_reference(name: &str) {
    let source = json!({
        "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataSource", "metadata": {"name": "golden"},
        "spec": {"source": golden()},
    });
    PLACE.create(DATA_SOURCES, SPACE, &source);
    let mut vm = machine(name, "Halted", &json!({"dataVolume": {"name": name}}));
    vm["spec"]["dataVolumeTemplates"] = json!([{
        "metadata": {"name": name, "annotations": {"cdi.kubevirt.io/storage.bind.immediate.requested": ""}},
        "spec": {
            "sourceRef": {"kind": "DataSource", "name": "golden"},
            "storage": {"storageClassName": "hostpath-csi", "accessModes": ["ReadWriteOnce"]},
        },
    }]);
    PLACE.create(MACHINES, SPACE, &vm);
}

/// The text of a VM's condition Failure, if that is true.
fn failure(namespace: &str, name: &str) -> Option<String> {
    let vm = PLACE.find(MACHINES, namespace, name)?;
    let conditions = vm["status"]["conditions"].as_array()?;
    let failure = conditions.iter().find(|one| one["type"] == "Failure" && one["status"] == "True")?;
    Some(failure["message"].as_str()?.to_owned())
}

/// Waits until a VM's condition reports that its account may not clone.
#[track_caller]
fn refused(name: &str, account: &str) {
    let text = format!(
        "Not authorized to create DataVolume {name}: User system:serviceaccount:{SPACE}:{account} has insufficient \
         permissions in clone source namespace {GOLDEN}"
    );
    PLACE.until(SPACE, &format!("{name} is refused"), || (failure(SPACE, name)? == text).then_some(()));
    PLACE.until(SPACE, &format!("{name} has its event"), || {
        let events = PLACE.list(EVENTS, SPACE);
        events
            .iter()
            .any(|event| {
                event["involvedObject"]["name"] == name
                    && event["reason"] == "UnauthorizedDataVolumeCreate"
                    && event["type"] == "Warning"
                    && event["message"] == text.as_str()
            })
            .then_some(())
    });
    assert!(PLACE.find(DATA_VOLUMES, SPACE, name).is_none());
}

fn allow(account: &str) {
    let subject = format!("--serviceaccount={SPACE}:{account}");
    let role = "--clusterrole=cdi.kubevirt.io:clone-sourcer";
    PLACE.kubectl(&["create", "rolebinding", account, "-n", GOLDEN, role, &subject]).unwrap();
}

#[track_caller]
fn cloned(name: &str) {
    PLACE.until(SPACE, &format!("{name} is cloned"), || {
        let volume = PLACE.find(DATA_VOLUMES, SPACE, name)?;
        (volume["status"]["phase"] == "Succeeded").then_some(())
    });
    PLACE.until(SPACE, &format!("{name} has no failure"), || {
        let vm = PLACE.find(MACHINES, SPACE, name)?;
        let conditions = vm["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().all(|one| one["type"] != "Failure" || one["status"] != "True").then_some(())
    });
}

/// The answer to a DataVolume that the operator's account tries to create with a token.
fn tried(token: &str) -> Result<String, String> {
    let mut wanted = volume("stolen", &golden());
    wanted["metadata"]["namespace"] = json!(SPACE);
    wanted["metadata"]["annotations"]["cdi.kubevirt.io/storage.clone.token"] = json!(token);
    let file = PLACE.cluster.place().path("stolen.json");
    std::fs::write(&file, wanted.to_string()).unwrap();
    let account = format!("system:serviceaccount:{PLATFORM}:kubevirt-controller");
    PLACE.kubectl(&["create", "--dry-run=server", "--as", &account, "-f", file.to_str().unwrap()])
}

#[test]
fn vms_clone_from_another_namespace_as_their_service_account() {
    PLACE.namespace(GOLDEN);
    PLACE.namespace(SPACE);
    PLACE.create(DATA_VOLUMES, GOLDEN, &volume("golden", &json!({"blank": {}})));
    PLACE.until(GOLDEN, "the source is made", || {
        let volume = PLACE.find(DATA_VOLUMES, GOLDEN, "golden")?;
        (volume["status"]["phase"] == "Succeeded").then_some(())
    });
    create("usual", "");
    refused("usual", "default");
    allow("default");
    cloned("usual");
    create_from_reference("referring");
    cloned("referring");
    // Another account than the default one, which may clone now.
    PLACE.kubectl(&["create", "serviceaccount", "cloner", "-n", SPACE]).unwrap();
    create("named", "cloner");
    refused("named", "cloner");
    allow("cloner");
    cloned("named");
    // The operator's account may clone everything, so admission trusts tokens only.
    let keys = SigningKeys::from(&PLACE.find(SECRETS, PLATFORM, SECRET).unwrap());
    let grant = |source: &str, target: &str| -> Grant {
        let origin = Origin { namespace: GOLDEN.into(), name: source.into(), snapshot: false };
        token::grant(&origin, Target { namespace: SPACE, name: target, uid: None })
    };
    let now = operator::storage::signers::now();
    let signed = |source: &str, target: &str, at| keys.sign(&grant(source, target), at).unwrap();
    let good = signed("golden", "stolen", now);
    let mut changed = good.clone();
    changed.replace_range(changed.len() - 8.., "AAAAAAAA");
    for (what, token) in [
        ("none", String::new()),
        ("forged", "a.b.c".to_owned()),
        ("changed", changed),
        ("expired", signed("golden", "stolen", now - 3600)),
        ("of another source", signed("silver", "stolen", now)),
        ("of another target", signed("golden", "usual", now)),
    ] {
        let said = tried(&token).unwrap_err();
        let text = format!("has insufficient permissions in clone source namespace {GOLDEN}");
        assert!(said.contains(&text), "{what}: {said}");
    }
    tried(&good).unwrap();
    for name in ["usual", "named", "referring"] {
        PLACE.delete(MACHINES, SPACE, name);
    }
    PLACE.remove_namespace(SPACE);
    PLACE.remove_namespace(GOLDEN);
}

#[test]
fn the_matrix_of_rights_is_that_of_vms_service_accounts() {
    const SOURCE: &str = "clones-rights-golden";
    const TARGET: &str = "clones-rights";
    PLACE.namespace(SOURCE);
    PLACE.namespace(TARGET);
    PLACE.create(DATA_VOLUMES, SOURCE, &volume("golden", &json!({"blank": {}})));
    let file = PLACE.cluster.place().path("clones-rights.yaml");
    for user in &USERS {
        PLACE.kubectl(&["create", "serviceaccount", user.name, "-n", TARGET]).unwrap();
    }
    let of = |user: &User| {
        let subject = format!("{{kind: ServiceAccount, name: {}, namespace: {TARGET}}}", user.name);
        user.role(SOURCE, &subject)
    };
    std::fs::write(&file, USERS.iter().map(of).collect::<Vec<_>>().join("---\n")).unwrap();
    PLACE.kubectl(&["apply", "-f", file.to_str().unwrap()]).unwrap();
    let golden = json!({"pvc": {"namespace": SOURCE, "name": "golden"}});
    for user in &USERS {
        PLACE.create(MACHINES, TARGET, &cloning(user.name, user.name, &golden));
    }
    for user in &USERS {
        let name = user.name;
        let text = format!(
            "User system:serviceaccount:{TARGET}:{name} has insufficient permissions in clone source namespace {SOURCE}"
        );
        PLACE.until(TARGET, &format!("{name} has its answer"), || match user.claim {
            true => PLACE.find(DATA_VOLUMES, TARGET, name).map(drop),
            false => failure(TARGET, name)?.contains(&text).then_some(()),
        });
        assert_eq!(PLACE.find(DATA_VOLUMES, TARGET, name).is_some(), user.claim, "{name}");
        PLACE.delete(MACHINES, TARGET, name);
    }
    PLACE.remove_namespace(TARGET);
    PLACE.remove_namespace(SOURCE);
}

/// Makes a DataVolume of a size; gives the time until it has succeeded, and the file of its volume.
fn made(namespace: &str, name: &str, source: &Value, size: &str) -> (Duration, PathBuf) {
    let mut object = volume(name, source);
    object["spec"]["storage"]["resources"]["requests"]["storage"] = json!(size);
    let begun = Instant::now();
    PLACE.create(DATA_VOLUMES, namespace, &object);
    PLACE.until(namespace, &format!("{name} has its content"), || {
        let volume = PLACE.find(DATA_VOLUMES, namespace, name)?;
        (volume["status"]["phase"] == "Succeeded").then_some(())
    });
    let took = begun.elapsed();
    let claim = PLACE.find(CLAIMS, namespace, name).unwrap();
    let volumes = Resource::cluster("", "v1", "persistentvolumes");
    let volume = PLACE.find(volumes, "", claim["spec"]["volumeName"].as_str().unwrap()).unwrap();
    let handle = volume["spec"]["csi"]["volumeHandle"].as_str().unwrap();
    (took, PLACE.cluster.node_path(&format!("{POOL}/{handle}/disk.img")).unwrap())
}

/// The test of storage has the stock sidecars.
#[test]
fn a_large_clone_by_the_agent_copies_nothing() {
    const NEAR: &str = "clones-large";
    const FAR: &str = "clones-large-far";
    let soak = std::env::var_os("FERROVIRT_SOAK").is_some();
    let (size, data) = if soak { ("4Gi", 4096) } else { ("1Gi", 128) };
    PLACE.namespace(NEAR);
    PLACE.namespace(FAR);
    let (_, disk) = made(NEAR, "golden", &json!({"blank": {}}), size);
    fill(&disk, data);
    let golden = json!({"pvc": {"namespace": NEAR, "name": "golden"}});
    for (namespace, which) in [(NEAR, "same"), (FAR, "other")] {
        let (took, disk) = made(namespace, "clone", &golden, size);
        println!("clone of {size} by the agent in the {which} namespace: {took:.2?}");
        assert!(!soak || took <= Duration::from_secs(2), "{took:?}");
        assert_shared(&disk);
        // The pool is the other tests' too.
        PLACE.delete(DATA_VOLUMES, namespace, "clone");
    }
    PLACE.remove_namespace(FAR);
    PLACE.remove_namespace(NEAR);
}
