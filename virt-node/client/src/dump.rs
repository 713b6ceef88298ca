//! `memory-dump get`: a request, before which the claim can be created in the size that the guest needs, as virtctl does.
//!
//! Not here: the download of a dump, which is an export.

use cluster::{Key, Resource};
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use crate::error::{Error, Kind, Result, failed, usage};
use crate::output::say;
use crate::power::{self, Verb};
use crate::site::{CLAIMS, INSTANCES, MACHINES, Site};
use crate::target::Target;

const CONFIGS: Resource = Resource::cluster("cdi.kubevirt.io", "v1beta1", "cdiconfigs");
/// Bytes of a dump beyond the guest's memory.
const EXTRA: u64 = 100 << 20;
/// Share of a claim that its filesystem takes, in thousandths, where the cluster has no CDIConfig.
const DEFAULT_OVERHEAD: u32 = 55;
const MIB: u64 = 1 << 20;

/// Flags of a dump.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// PersistentVolumeClaim [default: that of the last dump]
    #[arg(long, value_name = "NAME")]
    claim_name: Option<String>,
    /// Create the claim, in the size that the guest needs
    #[arg(long, requires = "claim_name")]
    create_claim: bool,
    /// StorageClass of the claim that is created
    #[arg(long, value_name = "NAME", requires = "create_claim")]
    storage_class: Option<String>,
    /// Access mode of the claim that is created
    #[arg(long, value_name = "MODE", requires = "create_claim")]
    access_mode: Option<String>,
}

/// Requests a dump.
///
/// # Errors
/// The claim cannot be created, or the API server refuses the request.
pub(crate) async fn get(site: &Site, name: &str, typed: &Options) -> Result<String> {
    if let Some(claim) = typed.claim_name.as_deref().filter(|_| typed.create_claim) {
        create(site, name, claim, typed).await?;
    }
    let verb = Verb::DumpMemory { claim: typed.claim_name.clone() };
    power::send(site, &Target::machine(name), &verb, false).await
}

async fn create(site: &Site, name: &str, claim: &str, typed: &Options) -> Result<()> {
    if typed.access_mode.as_deref() == Some("ReadOnlyMany") {
        return usage("cannot dump memory to a readonly pvc, use either ReadWriteOnce or ReadWriteMany");
    }
    let (of, key) = (Key::new(&site.namespace, name), Key::new(&site.namespace, claim));
    let what = format!("Error getting VirtualMachine {name}");
    let _machine: Value = site.client.get(MACHINES, &of).await.map_err(failed(what))?;
    let unread = failed(format!("PVC {key} cannot be read"));
    if site.client.find::<Value>(CLAIMS, &key).await.map_err(unread)?.is_some() {
        let text =
            format!("PVC {key} already exists, check if it should be created if not remove create flag");
        return Err(Error::new(Kind::Refused, text));
    }
    let what = format!("Error getting VirtualMachineInstance {name}");
    let instance: Value = site.client.get(INSTANCES, &of).await.map_err(failed(what))?;
    let unread = failed("CDIConfig config cannot be read");
    let config: Option<Value> = site.client.find(CONFIGS, &Key::cluster("config")).await.map_err(unread)?;
    let size = size(&instance, config.as_ref(), typed.storage_class.as_deref());
    let object = object(claim, size, typed);
    let created = site.client.create::<IgnoredAny>(CLAIMS, &site.namespace, &object).await;
    created.map_err(failed(format!("PVC {key} cannot be created")))?;
    say(&format!("PVC {key} created"));
    Ok(())
}

/// Bytes that a claim for a dump needs: whole mebibytes.
fn size(instance: &Value, config: Option<&Value>, class: Option<&str>) -> u64 {
    let places = ["/spec/domain/resources/requests/memory", "/spec/domain/memory/guest"];
    let memory = places.iter().filter_map(|place| {
        let text = instance.pointer(place)?.as_str()?;
        api::resource::Quantity(text.to_owned()).bytes().ok()
    });
    let dump = memory.max().unwrap_or(0).saturating_add(EXTRA);
    let overheads = config.map(|config| &config["status"]["filesystemOverhead"]);
    let overhead = overheads.and_then(|all| {
        let of_class = class.and_then(|class| all["storageClass"][class].as_str());
        of_class.or(all["global"].as_str()).and_then(api::cdi::thousandths)
    });
    let more = u128::from(dump) * u128::from(overhead.unwrap_or(DEFAULT_OVERHEAD)) / 1000;
    let whole = dump.saturating_add(u64::try_from(more).unwrap_or(u64::MAX));
    whole.div_ceil(MIB).saturating_add(1).saturating_mul(MIB)
}

fn object(claim: &str, size: u64, typed: &Options) -> Value {
    let mode = typed.access_mode.as_deref().unwrap_or("ReadWriteOnce");
    let mut spec = json!({"accessModes": [mode], "resources": {"requests": {"storage": size.to_string()}}});
    if let Some(class) = &typed.storage_class {
        spec["storageClassName"] = json!(class);
    }
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": claim, "labels": {"cdi.kubevirt.io/applyStorageProfile": "true"}},
        "spec": spec,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_is_created_in_the_size_of_the_guest() {
        let instance = json!({"spec": {"domain": {"memory": {"guest": "1Gi"}}}});
        let least = (1124_u64 << 20) + (1124_u64 << 20) * 55 / 1000;
        let default = size(&instance, None, None);
        assert!((least..=least + 2 * MIB).contains(&default) && default.is_multiple_of(MIB), "{default}");
        let config = json!({"status": {"filesystemOverhead": {"global": "0.1", "storageClass": {"a": "0"}}}});
        let (global, of_class) =
            (size(&instance, Some(&config), None), size(&instance, Some(&config), Some("a")));
        assert!(of_class < default && default < global, "{of_class} {default} {global}");
        let typed = Options {
            claim_name: Some("c".into()),
            create_claim: true,
            storage_class: Some("a".into()),
            access_mode: None,
        };
        let made = object("c", of_class, &typed);
        assert_eq!(made["spec"]["accessModes"], json!(["ReadWriteOnce"]));
        assert_eq!(made["spec"]["storageClassName"], "a");
        assert_eq!(made["metadata"]["labels"]["cdi.kubevirt.io/applyStorageProfile"], "true");
    }
}
