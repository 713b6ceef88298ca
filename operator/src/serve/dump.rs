//! `virtualmachines/NAME/memorydump` and `removememorydump`: requests that the VM's controller follows. The change is
//! decided by [`plan`] (pure), in upstream's order and words.

use std::sync::Arc;

use cluster::{JsonPatch, Key, Resource};
use http::StatusCode;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use serve::route::{Call, text};

use super::Site;
use super::instance::INSTANCES;
use super::status::{ATTEMPTS, Answered, Refusal};
use crate::storage::size::Overhead;
use crate::view::{Claim, TransferConfig};

const MACHINES: Resource = Resource::namespaced("kubevirt.io", "v1", "virtualmachines");
const CLAIMS: Resource = Resource::namespaced("", "v1", "persistentvolumeclaims");
const CONFIGS: Resource = Resource::cluster("cdi.kubevirt.io", "v1beta1", "cdiconfigs");
/// How errors name it.
const KIND: &str = "virtualmachine";
const CLAIM_KIND: &str = "persistentvolumeclaim";
/// Longest body of a request.
const MOST_BODY: usize = 64 << 10;
/// Bytes of a dump beyond the guest's memory.
const EXTRA: u64 = 100 << 20;
/// Share of a claim that its filesystem takes where CDI is not configured.
const DEFAULT_OVERHEAD: &str = "0.055";

/// Requested operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Dump,
    Remove,
}

/// All of them.
pub(super) const VERBS: [Verb; 2] = [Verb::Dump, Verb::Remove];

impl Verb {
    /// The last part of its path.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Dump => "memorydump",
            Self::Remove => "removememorydump",
        }
    }
}

/// Body of a request for a dump.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Options {
    claim_name: String,
}

/// Facts that decide on a dump.
#[derive(Debug, Default)]
struct Facts {
    /// `status.memoryDumpRequest` of the VM.
    before: Value,
    instance: Option<Value>,
    claim: Option<Claim>,
    /// Share of the claim that its filesystem takes.
    overhead: Option<String>,
}

/// Answers a request.
pub(super) async fn handle(site: Arc<Site>, mut call: Call, verb: Verb) -> Answered {
    site.gate.admit(&call, "virtualmachines", verb.name()).await?;
    let body = call.bytes(MOST_BODY).await?;
    let options = match verb {
        Verb::Dump => parse(&body)?,
        Verb::Remove => Options::default(),
    };
    let (namespace, name) = (call.parameter("namespace"), call.parameter("name"));
    let key = Key::new(namespace, name);
    for _ in 0..ATTEMPTS {
        let machine: Option<Value> = site.client.find(MACHINES, &key).await?;
        let machine = machine.ok_or_else(|| Refusal::absent(KIND, name))?;
        let mut facts = Facts { before: machine["status"]["memoryDumpRequest"].clone(), ..Facts::default() };
        if verb == Verb::Dump {
            let claim = claim_name(name, &facts.before, &options.claim_name)?;
            facts.instance = site.client.find(INSTANCES, &key).await?;
            facts.claim = site.client.find(CLAIMS, &Key::new(namespace, claim)).await?;
            let config: Option<TransferConfig> = site.client.find(CONFIGS, &Key::cluster("config")).await?;
            let class = facts.claim.as_ref().and_then(|claim| claim.spec.storage_class_name.as_deref());
            facts.overhead = config.and_then(|config| config.overhead(class).map(str::to_owned));
        }
        let request = plan(verb, name, &options, &facts)?;
        let path = "/status/memoryDumpRequest";
        let before = Some(&facts.before).filter(|before| !before.is_null());
        let patch = JsonPatch::new().test(path, before).add(path, request);
        match site.client.json_patch::<IgnoredAny>(MACHINES.sub("status"), &key, &patch).await {
            Ok(_) => return Ok(text(StatusCode::ACCEPTED, "")),
            Err(error) if error.is_conflict() => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(Refusal::raced(KIND, name))
}

fn parse(body: &[u8]) -> Result<Options, Refusal> {
    let bad = |text: String| Refusal::new(StatusCode::BAD_REQUEST, text);
    if body.is_empty() {
        return Err(bad("Request with no body".to_owned()));
    }
    serde_json::from_slice(body)
        .map_err(|error| bad(format!("Can not unmarshal Request body to struct, error: {error}")))
}

/// The claim that a request is about: the one that it names, or the one of the last request.
fn claim_name<'a>(name: &str, before: &'a Value, wanted: &'a str) -> Result<&'a str, Refusal> {
    match (before["claimName"].as_str(), wanted) {
        (None, "") => Err(Refusal::new(StatusCode::BAD_REQUEST, "Memory dump requires claim name to be set")),
        (None, wanted) => Ok(wanted),
        (Some(before), "") => Ok(before),
        (Some(before), wanted) if before == wanted => Ok(before),
        (Some(before), wanted) => {
            let text = format!(
                "can't request memory dump for pvc [{wanted}] while pvc [{before}] is still associated as the memory dump pvc"
            );
            Err(Refusal::conflict(KIND, name, &text))
        }
    }
}

/// The request that the VM's status is to have.
fn plan(verb: Verb, name: &str, options: &Options, facts: &Facts) -> Result<Value, Refusal> {
    let refused = |text: String| Err(Refusal::conflict(KIND, name, &text));
    let before = &facts.before;
    if verb == Verb::Remove {
        let Some(claim) = before["claimName"].as_str() else {
            let text = format!("can't remove memory dump association for vm {name}, no association found");
            return refused(text);
        };
        if before["remove"] == true {
            return refused(format!("memory dump remove request for pvc [{claim}] already exists"));
        }
        return Ok(json!({"claimName": claim, "phase": "Dissociating", "remove": true}));
    }
    let claim = claim_name(name, before, &options.claim_name)?;
    let absent = || Refusal::absent("virtualmachineinstance", name);
    let instance = facts.instance.as_ref().ok_or_else(absent)?;
    if instance["status"]["phase"] != "Running" {
        return Err(Refusal::conflict("virtualmachineinstance", name, "VMI is not running"));
    }
    fits(claim, facts.claim.as_ref(), memory(instance), facts.overhead.as_deref())?;
    match before["phase"].as_str() {
        None | Some("Completed" | "Failed") => {}
        Some("Dissociating") => {
            let text =
                format!("can't dump memory for pvc [{claim}] a remove memory dump request is in progress");
            return refused(text);
        }
        Some(_) => return refused(format!("memory dump request for pvc [{claim}] already in progress")),
    }
    Ok(json!({"claimName": claim, "phase": "Associating"}))
}

/// Whether a dump of so much memory fits into a claim.
fn fits(name: &str, claim: Option<&Claim>, memory: u64, overhead: Option<&str>) -> Result<(), Refusal> {
    let refused = |text: &str| Err(Refusal::conflict(CLAIM_KIND, name, text));
    let claim = claim.ok_or_else(|| Refusal::absent(CLAIM_KIND, name))?;
    if claim.is_block() {
        return refused("pvc should be filesystem pvc");
    }
    if claim.spec.access_modes.iter().all(|mode| mode == "ReadOnlyMany") {
        return refused("pvc access mode can't be read only");
    }
    let request = claim.spec.resources.requests.get("storage");
    let size = request.and_then(|request| request.bytes().ok()).unwrap_or(0);
    let overhead = Overhead::parse(overhead.unwrap_or(DEFAULT_OVERHEAD)).unwrap_or_default();
    let least = overhead.volume_for(memory.saturating_add(EXTRA));
    if size < least {
        let size = request.map_or("0", |request| request.0.as_str());
        return refused(&format!("pvc size [{size}] should be bigger then [{least}]"));
    }
    Ok(())
}

/// Bytes of memory of a guest: the most that its instance names.
fn memory(instance: &Value) -> u64 {
    let places = [
        "/spec/domain/resources/requests/memory",
        "/spec/domain/memory/guest",
        "/status/memory/guestCurrent",
    ];
    let found = places.iter().filter_map(|place| {
        let text = instance.pointer(place)?.as_str()?;
        api::resource::Quantity(text.to_owned()).bytes().ok()
    });
    found.max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(before: Value, claim: Value) -> Facts {
        Facts {
            before,
            instance: Some(
                json!({"spec": {"domain": {"memory": {"guest": "128Mi"}}}, "status": {"phase": "Running"}}),
            ),
            claim: serde_json::from_value(claim).unwrap(),
            overhead: None,
        }
    }

    fn claim(size: &str) -> Value {
        json!({"spec": {"accessModes": ["ReadWriteOnce"], "volumeMode": "Filesystem",
            "resources": {"requests": {"storage": size}}}})
    }

    fn planned(verb: Verb, claim_name: &str, facts: &Facts) -> Result<Value, (u16, String)> {
        let options = Options { claim_name: claim_name.to_owned() };
        plan(verb, "vm", &options, facts).map_err(|refusal| {
            let (code, text) = refusal.code_and_message();
            (code, text.rsplit(": ").next().unwrap_or_default().to_owned())
        })
    }

    #[test]
    fn requests_are_decided_by_the_last_one_the_guest_and_the_claim() {
        let before = |phase: &str| json!({"claimName": "c", "phase": phase});
        let none = Value::Null;
        let new = Ok(json!({"claimName": "c", "phase": "Associating"}));
        let removed = Ok(json!({"claimName": "c", "phase": "Dissociating", "remove": true}));
        let no = |code: u16, text: &str| Err((code, text.to_owned()));
        let busy = no(409, "memory dump request for pvc [c] already in progress");
        for (verb, name, before, expected) in [
            (Verb::Dump, "c", none.clone(), new.clone()),
            (Verb::Dump, "c", before("Completed"), new.clone()),
            (Verb::Dump, "", before("Failed"), new),
            (Verb::Dump, "", none.clone(), no(400, "Memory dump requires claim name to be set")),
            (Verb::Dump, "c", before("Associating"), busy.clone()),
            (Verb::Dump, "c", before("InProgress"), busy.clone()),
            (Verb::Dump, "c", before("Unmounting"), busy),
            (
                Verb::Dump,
                "c",
                before("Dissociating"),
                no(409, "can't dump memory for pvc [c] a remove memory dump request is in progress"),
            ),
            (
                Verb::Dump,
                "d",
                before("Completed"),
                no(
                    409,
                    "can't request memory dump for pvc [d] while pvc [c] is still associated as the memory dump pvc",
                ),
            ),
            (Verb::Remove, "", before("Completed"), removed.clone()),
            (Verb::Remove, "", before("InProgress"), removed),
            (
                Verb::Remove,
                "",
                none,
                no(409, "can't remove memory dump association for vm vm, no association found"),
            ),
            (
                Verb::Remove,
                "",
                json!({"claimName": "c", "phase": "Dissociating", "remove": true}),
                no(409, "memory dump remove request for pvc [c] already exists"),
            ),
        ] {
            let shown = format!("{verb:?} {name:?} {before}");
            assert_eq!(planned(verb, name, &facts(before, claim("1Gi"))), expected, "{shown}");
        }
        let mut stopped = facts(Value::Null, claim("1Gi"));
        stopped.instance.as_mut().unwrap()["status"]["phase"] = json!("Scheduled");
        assert_eq!(planned(Verb::Dump, "c", &stopped), no(409, "VMI is not running"));
        stopped.instance = None;
        assert_eq!(planned(Verb::Dump, "c", &stopped).unwrap_err().0, 404);
    }

    #[test]
    fn a_claim_holds_the_memory_and_more() {
        // (128 + 100) MiB and 5.5 per cent.
        let least = (228_u64 << 20) + ((228_u64 << 20) * 55).div_ceil(1000);
        let change = |path: &str, value: Value| {
            let mut claim = claim("1Gi");
            *claim.pointer_mut(path).unwrap() = value;
            claim
        };
        for (claim, expected) in [
            (claim(&least.to_string()), None),
            (
                claim(&(least - 1).to_string()),
                Some((409, format!("pvc size [{}] should be bigger then [{least}]", least - 1))),
            ),
            (
                change("/spec/volumeMode", json!("Block")),
                Some((409, "pvc should be filesystem pvc".to_owned())),
            ),
            (
                change("/spec/accessModes", json!(["ReadOnlyMany"])),
                Some((409, "pvc access mode can't be read only".to_owned())),
            ),
            (Value::Null, Some((404, "persistentvolumeclaim.kubevirt.io \"c\" not found".to_owned()))),
        ] {
            let shown = claim.to_string();
            assert_eq!(planned(Verb::Dump, "c", &facts(Value::Null, claim)).err(), expected, "{shown}");
        }
        let mut wide = facts(Value::Null, self::claim(&least.to_string()));
        wide.overhead = Some("0.2".to_owned());
        assert!(planned(Verb::Dump, "c", &wide).is_err());
        assert!(parse(b"").is_err() && parse(b"[").is_err());
    }
}
