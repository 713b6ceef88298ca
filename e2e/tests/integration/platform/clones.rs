//! VMs with DataVolumes cloned from another namespace: the VM's ServiceAccount needs the right, and the operator's
//! own account gets no clone without a token for it.

use api::upload::token::Grant;
use operator::storage::clone::authorize::Origin;
use operator::storage::clone::token::{self, Target};
use operator::storage::keys::{SECRET, SigningKeys};
use serde_json::{Value, json};

use crate::platform::machines::machine;
use crate::platform::place::{DATA_SOURCES, DATA_VOLUMES, EVENTS, MACHINES, PLACE, SECRETS};

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
fn create(name: &str, account: &str) {
    let mut vm = machine(name, "Halted", &json!({"dataVolume": {"name": name}}));
    let mut template = volume(name, &golden());
    template.as_object_mut().unwrap().retain(|field, _| field == "metadata" || field == "spec");
    vm["spec"]["dataVolumeTemplates"] = json!([template]);
    if !account.is_empty() {
        vm["spec"]["template"]["spec"]["serviceAccountName"] = json!(account);
    }
    PLACE.create(MACHINES, SPACE, &vm);
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

/// Waits until a VM's condition reports that its account may not clone.
#[track_caller]
fn refused(name: &str, account: &str) {
    let text = format!(
        "Not authorized to create DataVolume {name}: User system:serviceaccount:{SPACE}:{account} has insufficient \
         permissions in clone source namespace {GOLDEN}"
    );
    PLACE.until(SPACE, &format!("{name} is refused"), || {
        let vm = PLACE.find(MACHINES, SPACE, name)?;
        let conditions = vm["status"]["conditions"].as_array()?.clone();
        let failure = conditions.into_iter().find(|one| one["type"] == "Failure")?;
        (failure["status"] == "True" && failure["message"] == text.as_str()).then_some(())
    });
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
