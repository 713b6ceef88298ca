//! Instance types and preferences of VMs: reading the objects, or the revisions of them that a VM has.
//!
//! Admission, the aggregated API and the compute controllers read them in the same way. What they make of a VM is decided
//! in [`virt::instancetype`].

use api::kubevirt::{FlavorReference, FlavorStatus, VirtualMachine};
use cluster::{Client, Key, Resource};
use serde_json::Value;
use virt::instancetype::{self, Flavor, Inference, LOOKUPS_MAX, Lookup, Place, Which};

const VERSION: &str = "v1beta1";
const REVISIONS: Resource = Resource::namespaced("apps", "v1", "controllerrevisions");

/// Why a reference cannot be followed.
#[derive(Debug)]
pub(crate) enum Unusable {
    /// The object is missing or is none of its kind.
    Refused {
        /// The reference.
        which: Which,
        /// For people.
        text: String,
    },
    /// The API server could not be asked.
    Failed(cluster::Error),
}

impl From<cluster::Error> for Unusable {
    fn from(error: cluster::Error) -> Self {
        Self::Failed(error)
    }
}

fn refused(which: Which, text: String) -> Unusable {
    Unusable::Refused { which, text }
}

/// The object that a reference names, as it is now.
pub(crate) async fn object(
    client: &Client,
    namespace: &str,
    which: Which,
    reference: &FlavorReference,
) -> Result<Value, Unusable> {
    let name = reference.name.as_deref().unwrap_or_default();
    let kind = reference.kind.as_deref().unwrap_or_default();
    let Some((plural, namespaced)) = which.resource(kind) else {
        return Err(refused(which, format!("got unexpected kind in {} matcher: {kind}", which.field())));
    };
    let (resource, key) = if namespaced {
        (Resource::namespaced(instancetype::GROUP, VERSION, plural), Key::new(namespace, name))
    } else {
        (Resource::cluster(instancetype::GROUP, VERSION, plural), Key::new("", name))
    };
    let found: Option<Value> = client.find(resource, &key).await?;
    let mut found = found
        .ok_or_else(|| refused(which, format!("{plural}.{} \"{name}\" not found", instancetype::GROUP)))?;
    // Objects of a list or a patched one may lack these; revisions are read by them.
    if found["kind"].is_null() {
        let namespaced_kind = if which == Which::Instancetype {
            "VirtualMachineInstancetype"
        } else {
            "VirtualMachinePreference"
        };
        found["kind"] = (if namespaced { namespaced_kind } else { which.cluster_kind() }).into();
        found["apiVersion"] = format!("{}/{VERSION}", instancetype::GROUP).into();
    }
    Ok(found)
}

/// Name of the revision that a VM's reference stands for, if it has one.
pub(crate) fn revision_of<'a>(
    reference: &'a FlavorReference,
    status: Option<&'a FlavorStatus>,
) -> Option<&'a str> {
    let same = |status: &&FlavorStatus| status.name == reference.name && status.kind == reference.kind;
    let kept =
        status.filter(same).and_then(|status| status.controller_revision_ref.as_ref()?.name.as_deref());
    kept.or(reference.revision_name.as_deref()).filter(|name| !name.is_empty())
}

/// The entry of a reference in a VM's status.
fn kept(machine: &VirtualMachine, which: Which) -> Option<&FlavorStatus> {
    let status = machine.status.as_ref()?;
    match which {
        Which::Instancetype => status.instancetype_ref.as_ref(),
        Which::Preference => status.preference_ref.as_ref(),
    }
}

/// Whether one of a VM's references stands for a revision.
pub(crate) fn has_revision(machine: &VirtualMachine) -> bool {
    Which::BOTH.into_iter().any(|which| {
        let reference = which.of(machine);
        reference.is_some_and(|reference| revision_of(reference, kept(machine, which)).is_some())
    })
}

/// Instance type and preference of a VM: as its revisions hold them, or as they are now.
pub(crate) async fn flavor(
    client: &Client,
    namespace: &str,
    machine: &VirtualMachine,
) -> Result<Flavor, Unusable> {
    let mut flavor = Flavor::default();
    for which in Which::BOTH {
        let Some(reference) = which.of(machine) else { continue };
        let object = match revision_of(reference, kept(machine, which)) {
            Some(name) => {
                let found: Option<Value> = client.find(REVISIONS, &Key::new(namespace, name)).await?;
                found.ok_or_else(|| refused(which, format!("controllerrevisions.apps {name:?} not found")))?
            }
            None => object(client, namespace, which, reference).await?,
        };
        instancetype::read(&mut flavor, which, &object).map_err(|text| {
            let name = reference.name.as_deref().unwrap_or_default();
            refused(which, format!("{} {name:?} cannot be used: {text}", which.field()))
        })?;
    }
    Ok(flavor)
}

/// Replaces references that name a volume by what its labels name.
pub(crate) async fn infer(
    client: &Client,
    namespace: &str,
    machine: &mut VirtualMachine,
) -> Result<(), Unusable> {
    for which in Which::BOTH {
        let Some(reference) = which.of(machine) else { continue };
        let Some(volume) = reference.infer_from_volume.clone().filter(|volume| !volume.is_empty()) else {
            continue;
        };
        if instancetype::malformed(which, reference).is_some() {
            continue;
        }
        let tolerant = reference.infer_from_volume_failure_policy.as_deref() == Some("Ignore");
        let inferred = follow(client, namespace, machine, which, &volume).await;
        let reference = match inferred {
            Ok((name, kind)) => {
                Some(FlavorReference { name: Some(name), kind: Some(kind), ..FlavorReference::default() })
            }
            Err(Stopped::Inference { tolerable: true, .. }) if tolerant => None,
            Err(Stopped::Inference { text, .. }) => return Err(refused(which, text)),
            Err(Stopped::Failed(error)) => return Err(error.into()),
        };
        match which {
            Which::Instancetype => {
                // Clients that infer with Ignore give memory for the case that nothing is inferred.
                if tolerant && reference.is_some() {
                    machine.spec.template.spec.domain.memory = None;
                }
                machine.spec.instancetype = reference;
            }
            Which::Preference => machine.spec.preference = reference,
        }
    }
    Ok(())
}

enum Stopped {
    Inference { text: String, tolerable: bool },
    Failed(cluster::Error),
}

impl From<instancetype::InferenceError> for Stopped {
    fn from(error: instancetype::InferenceError) -> Self {
        Self::Inference { text: error.text, tolerable: error.tolerable }
    }
}

/// Name and kind that the labels of a volume name.
async fn follow(
    client: &Client,
    namespace: &str,
    machine: &VirtualMachine,
    which: Which,
    volume: &str,
) -> Result<(String, String), Stopped> {
    let mut step = instancetype::begin(machine, namespace, which, volume)?;
    for _ in 0..LOOKUPS_MAX {
        let lookup = match step {
            Inference::Named { name, kind } => return Ok((name, kind)),
            Inference::Look(lookup) => lookup,
        };
        let Lookup { place, namespace, name } = &lookup;
        let found: Option<Value> =
            client.find(resource(*place), &Key::new(namespace, name)).await.map_err(Stopped::Failed)?;
        step = instancetype::next(which, &lookup, found.as_ref())?;
    }
    let text = format!(
        "unable to infer defaults from volume {volume}: its sources refer to more than {LOOKUPS_MAX} objects"
    );
    Err(Stopped::Inference { text, tolerable: false })
}

fn resource(place: Place) -> Resource {
    match place {
        Place::Claim => Resource::namespaced("", "v1", "persistentvolumeclaims"),
        Place::DataVolume => Resource::namespaced("cdi.kubevirt.io", "v1beta1", "datavolumes"),
        Place::DataSource => Resource::namespaced("cdi.kubevirt.io", "v1beta1", "datasources"),
        Place::Snapshot => Resource::namespaced("snapshot.storage.k8s.io", "v1", "volumesnapshots"),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpListener;
    use std::sync::mpsc::{self, Receiver};

    use cluster::Config;
    use serde_json::json;

    use super::*;

    const CLAIM: &str = "/api/v1/namespaces/n/persistentvolumeclaims/c";
    const CLAIM_OF_VOLUME: &str = "/api/v1/namespaces/n/persistentvolumeclaims/d";
    const VOLUME: &str = "/apis/cdi.kubevirt.io/v1beta1/namespaces/n/datavolumes/d";
    const SOURCE: &str = "/apis/cdi.kubevirt.io/v1beta1/namespaces/g/datasources/s";
    const SNAPSHOT: &str = "/apis/snapshot.storage.k8s.io/v1/namespaces/g/volumesnapshots/s";

    /// A client of an API server with these objects, by their paths, and the paths that are read.
    fn server(objects: Vec<(&'static str, Value)>) -> (Client, Receiver<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (send, paths) = mpsc::channel();
        let absent = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": "not found", "reason": "NotFound", "code": 404});
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
                let request = lines.next().unwrap_or_default();
                let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
                while lines.next().is_some_and(|line| !line.is_empty()) {}
                let (status, body) = match objects.iter().find(|(at, _)| *at == path) {
                    Some((_, object)) => ("200 OK", object.to_string()),
                    None => ("404 Not Found", absent.to_string()),
                };
                if send.send(path).is_err() {
                    return;
                }
                let head = "Content-Type: application/json\r\nConnection: close\r\nContent-Length";
                write!(stream, "HTTP/1.1 {status}\r\n{head}: {}\r\n\r\n{body}", body.len()).unwrap();
            }
        });
        (Client::new(&Config::new(format!("http://{address}")), "tests").unwrap(), paths)
    }

    /// A VM that infers both from its only volume.
    fn machine(policy: &str, volume: &Value, templates: &Value) -> VirtualMachine {
        let mut reference = json!({"inferFromVolume": "root"});
        if !policy.is_empty() {
            reference["inferFromVolumeFailurePolicy"] = json!(policy);
        }
        let mut volume = volume.clone();
        volume["name"] = json!("root");
        let machine = json!({"metadata": {"name": "vm"}, "spec": {
            "instancetype": reference, "preference": reference, "dataVolumeTemplates": templates,
            "template": {"spec": {
                "domain": {"memory": {"guest": "1Gi"}, "devices": {}}, "volumes": [volume],
            }},
        }});
        serde_json::from_value(machine).unwrap()
    }

    fn labelled() -> Value {
        json!({"metadata": {"labels": {
            "instancetype.kubevirt.io/default-instancetype": "small",
            "instancetype.kubevirt.io/default-preference": "plain",
            "instancetype.kubevirt.io/default-preference-kind": "VirtualMachinePreference",
        }}})
    }

    fn names(reference: Option<&FlavorReference>) -> (&str, &str) {
        let reference = reference.unwrap();
        assert_eq!(reference.infer_from_volume, None);
        (reference.name.as_deref().unwrap(), reference.kind.as_deref().unwrap())
    }

    #[tokio::test]
    async fn names_are_inferred_from_the_objects_of_a_volume() {
        let (claim, volume) =
            (json!({"persistentVolumeClaim": {"claimName": "c"}}), json!({"dataVolume": {"name": "d"}}));
        let source = json!([{"metadata": {"name": "d"}, "spec": {"storage": {},
            "sourceRef": {"kind": "DataSource", "namespace": "g", "name": "s"}}}]);
        let of_snapshot =
            json!({"metadata": {}, "spec": {"source": {"snapshot": {"name": "s", "namespace": "g"}}}});
        let none = json!([]);
        for (case, volume, templates, objects, read) in [
            ("claim", &claim, &none, vec![(CLAIM, labelled())], vec![CLAIM]),
            ("DataVolume", &volume, &none, vec![(VOLUME, labelled())], vec![VOLUME]),
            (
                "claim of a DataVolume that is gone",
                &volume,
                &none,
                vec![(CLAIM_OF_VOLUME, labelled())],
                vec![VOLUME, CLAIM_OF_VOLUME],
            ),
            ("DataSource of a template", &volume, &source, vec![(SOURCE, labelled())], vec![SOURCE]),
            (
                "snapshot of a DataSource",
                &volume,
                &source,
                vec![(SOURCE, of_snapshot.clone()), (SNAPSHOT, labelled())],
                vec![SOURCE, SNAPSHOT],
            ),
            (
                "snapshot of a DataVolume",
                &volume,
                &none,
                vec![(VOLUME, of_snapshot), (SNAPSHOT, labelled())],
                vec![VOLUME, SNAPSHOT],
            ),
        ] {
            let (client, paths) = server(objects);
            let mut machine = machine("", volume, templates);
            infer(&client, "n", &mut machine).await.unwrap();
            let (instancetype, preference) =
                (names(machine.spec.instancetype.as_ref()), names(machine.spec.preference.as_ref()));
            assert_eq!(instancetype, ("small", "VirtualMachineClusterInstancetype"), "{case}");
            assert_eq!(preference, ("plain", "VirtualMachinePreference"), "{case}");
            assert!(machine.spec.template.spec.domain.memory.is_some(), "{case}");
            let paths: Vec<String> = paths.try_iter().collect();
            assert_eq!(paths, [read.clone(), read].concat(), "{case}");
        }
    }

    #[tokio::test]
    async fn failures_are_ignored_as_far_as_the_policy_and_the_cause_allow() {
        let claim = json!({"persistentVolumeClaim": {"claimName": "c"}});
        let bare = json!({"metadata": {"name": "c"}});
        let missing = "unable to infer defaults: PersistentVolumeClaim n/c not found";
        let unlabelled = "unable to find required instancetype.kubevirt.io/default-instancetype label on \
                          PersistentVolumeClaim n/c";
        for (policy, objects, refusal) in [
            ("", vec![(CLAIM, bare.clone())], Some(unlabelled)),
            ("Reject", vec![(CLAIM, bare.clone())], Some(unlabelled)),
            ("Ignore", vec![(CLAIM, bare)], None),
            ("Ignore", vec![], Some(missing)),
        ] {
            let (client, _paths) = server(objects);
            let mut machine = machine(policy, &claim, &json!([]));
            let text = match infer(&client, "n", &mut machine).await {
                Ok(()) => None,
                Err(Unusable::Refused { which, text }) => {
                    assert_eq!(which, Which::Instancetype);
                    Some(text)
                }
                Err(Unusable::Failed(error)) => panic!("{error}"),
            };
            assert_eq!(text.as_deref(), refusal, "{policy:?}");
            if refusal.is_none() {
                assert!(machine.spec.instancetype.is_none() && machine.spec.preference.is_none());
                assert!(machine.spec.template.spec.domain.memory.is_some());
            }
        }
        // The inferred instance type gives the memory.
        let (client, _paths) = server(vec![(CLAIM, labelled())]);
        let mut machine = machine("Ignore", &claim, &json!([]));
        infer(&client, "n", &mut machine).await.unwrap();
        assert!(machine.spec.template.spec.domain.memory.is_none());
    }

    #[tokio::test]
    async fn sources_that_refer_to_each_other_end() {
        let circle =
            json!({"metadata": {}, "spec": {"source": {"dataSource": {"name": "s", "namespace": "g"}}}});
        let (client, paths) = server(vec![(VOLUME, circle.clone()), (SOURCE, circle)]);
        let mut machine = machine("Ignore", &json!({"dataVolume": {"name": "d"}}), &json!([]));
        let refused = infer(&client, "n", &mut machine).await.unwrap_err();
        assert!(
            matches!(&refused, Unusable::Refused { text, .. } if text.contains("refer to more than")),
            "{refused:?}"
        );
        assert_eq!(paths.try_iter().count(), LOOKUPS_MAX);
    }
}
