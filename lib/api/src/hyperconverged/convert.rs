//! Conversion of `HyperConverged` between v1beta1 and v1.
//!
//! Most settings have the same form in both versions and another place: [`MOVED`] lists both. Settings that only one
//! version has are kept in an annotation while the object is in the other version, so that a conversion there and back
//! gives the object that it began with.

use serde_json::{Map, Value, json};
use thiserror::Error;

use super::gates;
use super::{API_VERSION, API_VERSION_BETA};

/// Annotation with the settings that the other version has no place for, JSON.
pub const ANNOTATION: &str = "ferrovirt.io/other-version";

/// Places of the settings: in v1beta1, in v1. None is below another one's place of the same version.
const MOVED: [(&str, &str); 45] = [
    ("CommonInstancetypesDeployment", "workloadSources.commonInstancetypesDeployment"),
    (
        "applicationAwareConfig.allowApplicationAwareClusterResourceQuota",
        "deployment.applicationAwareConfig.allowApplicationAwareClusterResourceQuota",
    ),
    ("applicationAwareConfig.namespaceSelector", "deployment.applicationAwareConfig.namespaceSelector"),
    ("applicationAwareConfig.vmiCalcConfigName", "deployment.applicationAwareConfig.vmiCalcConfigName"),
    ("certConfig", "security.certConfig"),
    ("changedBlockTrackingLabelSelectors", "virtualization.changedBlockTrackingLabelSelectors"),
    ("commonBootImageNamespace", "workloadSources.commonBootImageNamespace"),
    ("commonTemplatesNamespace", "workloadSources.commonTemplatesNamespace"),
    ("dataImportCronTemplates", "workloadSources.dataImportCronTemplates"),
    ("defaultCPUModel", "virtualization.virtualMachineOptions.defaultCPUModel"),
    ("defaultRuntimeClass", "virtualization.virtualMachineOptions.defaultRuntimeClass"),
    ("deployVmConsoleProxy", "deployment.deployVmConsoleProxy"),
    ("enableApplicationAwareQuota", "deployment.applicationAwareConfig.enable"),
    ("enableCommonBootImageImport", "workloadSources.enableCommonBootImageImport"),
    ("evictionStrategy", "virtualization.evictionStrategy"),
    ("filesystemOverhead", "storage.filesystemOverhead"),
    ("higherWorkloadDensity", "virtualization.higherWorkloadDensity"),
    ("hypervisors", "virtualization.hypervisors"),
    ("infra.nodePlacement", "deployment.nodePlacements.infra"),
    ("instancetypeConfig", "workloadSources.instancetypeConfig"),
    ("ksmConfiguration", "virtualization.ksmConfiguration"),
    ("kubeMacPoolConfiguration", "networking.kubeMacPoolConfiguration"),
    ("kubeSecondaryDNSNameServerIP", "networking.kubeSecondaryDNSNameServerIP"),
    ("liveMigrationConfig", "virtualization.liveMigrationConfig"),
    ("liveUpdateConfiguration", "virtualization.liveUpdateConfiguration"),
    ("logVerbosityConfig", "deployment.logVerbosityConfig"),
    (
        "mediatedDevicesConfiguration.mediatedDeviceTypes",
        "virtualization.mediatedDevicesConfiguration.mediatedDeviceTypes",
    ),
    ("networkBinding", "networking.networkBinding"),
    ("obsoleteCPUs.cpuModels", "virtualization.obsoleteCPUModels"),
    ("permittedHostDevices", "virtualization.permittedHostDevices"),
    (
        "resourceRequirements.autoCPULimitNamespaceLabelSelector",
        "virtualization.autoCPULimitNamespaceLabelSelector",
    ),
    ("resourceRequirements.storageWorkloads", "storage.workloadResourceRequirements"),
    ("resourceRequirements.vmiCPUAllocationRatio", "virtualization.vmiCPUAllocationRatio"),
    ("roleAggregationStrategy", "virtualization.roleAggregationStrategy"),
    ("scratchSpaceStorageClass", "storage.scratchSpaceStorageClass"),
    ("storageImport", "storage.storageImport"),
    ("tlsSecurityProfile", "security.tlsSecurityProfile"),
    ("tuningPolicy", "virtualization.tuningPolicy"),
    ("uninstallStrategy", "deployment.uninstallStrategy"),
    (
        "virtualMachineOptions.disableFreePageReporting",
        "virtualization.virtualMachineOptions.disableFreePageReporting",
    ),
    (
        "virtualMachineOptions.disableSerialConsoleLog",
        "virtualization.virtualMachineOptions.disableSerialConsoleLog",
    ),
    ("vmStateStorageClass", "storage.vmStateStorageClass"),
    ("workloadUpdateStrategy", "virtualization.workloadUpdateStrategy"),
    ("workloads.nodePlacement", "deployment.nodePlacements.workload"),
    (
        "mediatedDevicesConfiguration.nodeMediatedDeviceTypes",
        "virtualization.mediatedDevicesConfiguration.nodeMediatedDeviceTypes",
    ),
];

/// Why an object cannot be converted.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ConvertError {
    /// The version is neither v1 nor v1beta1.
    #[error("apiVersion {0:?} is not served: use {API_VERSION} or {API_VERSION_BETA}")]
    Version(String),
    /// The object has no metadata.
    #[error("the object has no metadata")]
    Metadata,
}

/// The object in another version.
///
/// # Errors
/// When one of the two versions is unknown, or the object has no metadata.
pub fn convert(object: &Value, version: &str) -> Result<Value, ConvertError> {
    let beta = |version: &str| match version {
        API_VERSION => Ok(false),
        API_VERSION_BETA => Ok(true),
        _ => Err(ConvertError::Version(version.to_owned())),
    };
    let (from, to) = (beta(object["apiVersion"].as_str().unwrap_or_default())?, beta(version)?);
    if !object["metadata"].is_object() {
        return Err(ConvertError::Metadata);
    }
    if from == to {
        return Ok(object.clone());
    }
    let mut converted = object.clone();
    converted["apiVersion"] = json!(version);
    let saved = saved(&mut converted);
    let Value::Object(mut source) = converted["spec"].take() else { return Ok(without_spec(converted)) };
    let mut spec = Value::Object(Map::new());
    if from {
        rename_types(&mut source);
    }
    let gates = source.remove("featureGates");
    for (in_beta, in_v1) in MOVED {
        let (here, there) = if from { (in_beta, in_v1) } else { (in_v1, in_beta) };
        if let Some(value) = take(&mut source, here) {
            put(&mut spec, there, value);
        }
    }
    let mut keep = Map::new();
    if from {
        let earlier = saved["gates"].as_array().cloned().unwrap_or_default();
        if let Some(object) = gates.as_ref().and_then(Value::as_object) {
            let list = gates::to_list(object, &earlier);
            if !list.is_empty() || saved["gates"].is_array() {
                spec["featureGates"] = json!(list);
            }
        }
    } else {
        let list = gates.as_ref().and_then(Value::as_array).cloned();
        let object = gates::to_object(list.as_deref().unwrap_or_default());
        if let Some(list) = list.filter(|list| gates::to_list(&object, &[]) != *list || list.is_empty()) {
            keep.insert("gates".to_owned(), json!(list));
        }
        spec["featureGates"] = Value::Object(object);
    }
    prune(&mut source);
    if !source.is_empty() {
        keep.insert("spec".to_owned(), Value::Object(source));
    }
    merge(&mut spec, saved["spec"].clone());
    converted["spec"] = spec;
    if !keep.is_empty() {
        converted["metadata"]["annotations"][ANNOTATION] = json!(Value::Object(keep).to_string());
    }
    Ok(converted)
}

/// A field's path in v1beta1, from its path in v1; the same if it has no place of its own there.
pub fn beta_path(path: &str) -> String {
    let Some(inner) = path.strip_prefix("spec.") else { return path.to_owned() };
    for (in_beta, in_v1) in MOVED {
        let rest = inner.strip_prefix(in_v1).filter(|rest| rest.is_empty() || rest.starts_with(['.', '[']));
        if let Some(rest) = rest {
            return format!("spec.{in_beta}{rest}");
        }
    }
    path.to_owned()
}

/// Replaces deprecated names of v1beta1 by the ones in force: `mediatedDevicesTypes` is `mediatedDeviceTypes`.
fn rename_types(spec: &mut Map<String, Value>) {
    let Some(devices) = spec.get_mut("mediatedDevicesConfiguration").and_then(Value::as_object_mut) else {
        return;
    };
    let rename = |object: &mut Map<String, Value>| {
        if let Some(types) = object.remove("mediatedDevicesTypes") {
            object.entry("mediatedDeviceTypes").or_insert(types);
        }
    };
    rename(devices);
    let nodes = devices.get_mut("nodeMediatedDeviceTypes").and_then(Value::as_array_mut);
    nodes.into_iter().flatten().filter_map(Value::as_object_mut).for_each(rename);
}

fn without_spec(mut object: Value) -> Value {
    if let Some(object) = object.as_object_mut() {
        object.remove("spec");
    }
    object
}

/// Takes the annotation with the settings of the other version off the object.
fn saved(object: &mut Value) -> Value {
    let Some(annotations) = object["metadata"]["annotations"].as_object_mut() else {
        // Indexing made a null of what was missing.
        if let Some(metadata) = object["metadata"].as_object_mut() {
            metadata.remove("annotations");
        }
        return Value::Null;
    };
    let text = annotations.remove(ANNOTATION);
    if text.is_some()
        && annotations.is_empty()
        && let Some(metadata) = object["metadata"].as_object_mut()
    {
        metadata.remove("annotations");
    }
    text.as_ref().and_then(Value::as_str).and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

/// Takes a value out of an object; objects that become empty on the way go too.
fn take(object: &mut Map<String, Value>, path: &str) -> Option<Value> {
    let Some((first, rest)) = path.split_once('.') else { return object.remove(path) };
    let inner = object.get_mut(first)?.as_object_mut()?;
    let value = take(inner, rest)?;
    if inner.is_empty() {
        object.remove(first);
    }
    Some(value)
}

fn put(object: &mut Value, path: &str, value: Value) {
    let place = path.split('.').fold(object, |object, step| &mut object[step]);
    *place = value;
}

/// Removes objects without fields. Only groups of settings remain where this is used: an empty one has no meaning.
fn prune(object: &mut Map<String, Value>) {
    object.retain(|_, value| !value.as_object().is_some_and(Map::is_empty));
}

/// Adds fields of `more` that the object lacks.
fn merge(object: &mut Value, more: Value) {
    let Value::Object(more) = more else { return };
    let Some(object) = object.as_object_mut() else { return };
    for (name, value) in more {
        match object.get_mut(&name) {
            None => drop(object.insert(name, value)),
            Some(present) => merge(present, value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_those_of_the_older_version() {
        for (path, expected) in [
            ("spec.security.certConfig.ca.duration", "spec.certConfig.ca.duration"),
            (
                "spec.deployment.nodePlacements.infra.tolerations[0].effect",
                "spec.infra.nodePlacement.tolerations[0].effect",
            ),
            ("spec.virtualization.obsoleteCPUModels[1]", "spec.obsoleteCPUs.cpuModels[1]"),
            ("metadata.annotations[x]", "metadata.annotations[x]"),
            ("spec.virtualization.evictionStrategyX", "spec.virtualization.evictionStrategyX"),
        ] {
            assert_eq!(beta_path(path), expected);
        }
    }

    #[test]
    fn no_place_is_below_another() {
        for (index, (beta, v1)) in MOVED.iter().enumerate() {
            for (other, (one, two)) in MOVED.iter().enumerate() {
                let below = |a: &str, b: &str| a.starts_with(&format!("{b}.")) || a == b;
                assert!(index == other || !(below(beta, one) || below(v1, two)), "{beta} {one} {v1} {two}");
            }
        }
    }
}
