//! `create instancetype` and `create preference`: manifests from flags, printed and not sent. Pure but for random names. A
//! namespace on the command line asks for the kind of a namespace, as `--namespaced` does.

use clap::ValueEnum;
use serde_json::{Value, json};

use super::named;
use super::parameters::Parameters;
use crate::error::{Error, Kind, Result};
use crate::output::{Document, render};

/// I/O threads of disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum IoThreads {
    /// One thread for each disk, within a limit
    Auto,
    /// One thread for all disks
    Shared,
}

/// Form of the vCPUs of an instance type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Topology {
    Sockets,
    Cores,
    Threads,
    Spread,
    Any,
}

/// Flags of an instance type.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct InstancetypeOptions {
    /// Name [default: clusterinstancetype- or instancetype- and five random characters]
    #[arg(long)]
    name: Option<String>,
    /// vCPUs
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    cpu: u32,
    /// Memory of the guest, such as 2Gi
    #[arg(long, value_name = "SIZE")]
    memory: String,
    /// GPU of the host: name:NAME,devicename:RESOURCE; may be repeated
    #[arg(long, value_name = "PARAMETERS")]
    gpu: Vec<String>,
    /// Other device of the host: name:NAME,devicename:RESOURCE; may be repeated
    #[arg(long, value_name = "PARAMETERS")]
    hostdevice: Vec<String>,
    /// I/O threads of disks
    #[arg(long, value_enum)]
    iothreadspolicy: Option<IoThreads>,
    /// A VirtualMachineInstancetype, of a namespace, instead of a VirtualMachineClusterInstancetype
    #[arg(long)]
    namespaced: bool,
    /// Format
    #[arg(short, long, value_enum, default_value_t = Document::Yaml)]
    output: Document,
}

/// Flags of a preference.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct PreferenceOptions {
    /// Name [default: clusterpreference- or preference- and five random characters]
    #[arg(long)]
    name: Option<String>,
    /// Form of the vCPUs of an instance type
    #[arg(long, value_enum)]
    cpu_topology: Option<Topology>,
    /// Machine type
    #[arg(long, value_name = "TYPE")]
    machine_type: Option<String>,
    /// Storage class of new volumes
    #[arg(long, value_name = "NAME")]
    volume_storage_class: Option<String>,
    /// A VirtualMachinePreference, of a namespace, instead of a VirtualMachineClusterPreference
    #[arg(long)]
    namespaced: bool,
    /// Format
    #[arg(short, long, value_enum, default_value_t = Document::Yaml)]
    output: Document,
}

/// Prints an instance type.
///
/// # Errors
/// A size or a device's parameters are wrong.
pub(crate) fn instancetype(typed: &InstancetypeOptions, namespace: Option<&str>) -> Result<String> {
    if let Err(error) = api::quantity::bytes(&typed.memory) {
        return Err(Error::with(Kind::Usage, format!("--memory {:?}", typed.memory), error));
    }
    let mut spec = json!({"cpu": {"guest": typed.cpu}, "memory": {"guest": typed.memory}});
    for (flag, field, given) in
        [("gpu", "gpus", &typed.gpu), ("hostdevice", "hostDevices", &typed.hostdevice)]
    {
        if !given.is_empty() {
            let devices: Result<Vec<Value>> = given.iter().map(|text| device(flag, text)).collect();
            spec[field] = json!(devices?);
        }
    }
    if let Some(policy) = typed.iothreadspolicy {
        spec["ioThreadsPolicy"] = json!(match policy {
            IoThreads::Auto => "auto",
            IoThreads::Shared => "shared",
        });
    }
    let made = manifest("Instancetype", typed.name.as_deref(), typed.namespaced, namespace, &spec);
    render(&made, typed.output)
}

/// Prints a preference.
///
/// # Errors
/// The document cannot be written.
pub(crate) fn preference(typed: &PreferenceOptions, namespace: Option<&str>) -> Result<String> {
    let mut spec = json!({});
    if let Some(topology) = typed.cpu_topology {
        let word = match topology {
            Topology::Sockets => "sockets",
            Topology::Cores => "cores",
            Topology::Threads => "threads",
            Topology::Spread => "spread",
            Topology::Any => "any",
        };
        spec["cpu"] = json!({"preferredCPUTopology": word});
    }
    if let Some(machine) = &typed.machine_type {
        spec["machine"] = json!({"preferredMachineType": machine});
    }
    if let Some(class) = &typed.volume_storage_class {
        spec["volumes"] = json!({"preferredStorageClassName": class});
    }
    let made = manifest("Preference", typed.name.as_deref(), typed.namespaced, namespace, &spec);
    render(&made, typed.output)
}

/// A device of the host.
fn device(flag: &'static str, text: &str) -> Result<Value> {
    let mut given = Parameters::read(flag, text)?;
    let (name, resource) = (given.need("name")?, given.need("devicename")?);
    given.end()?;
    Ok(json!({"name": name, "deviceName": resource}))
}

/// An object of a kind of the cluster or of a namespace.
fn manifest(
    kind: &str,
    name: Option<&str>,
    namespaced: bool,
    namespace: Option<&str>,
    spec: &Value,
) -> Value {
    let of_cluster = if namespaced || namespace.is_some() { "" } else { "Cluster" };
    let prefix = format!("{of_cluster}{kind}-").to_lowercase();
    let mut metadata = json!({"name": named(name, &prefix)});
    if let Some(namespace) = namespace {
        metadata["namespace"] = json!(namespace);
    }
    json!({
        "apiVersion": api::instancetype::API_VERSION,
        "kind": format!("VirtualMachine{of_cluster}{kind}"),
        "metadata": metadata,
        "spec": spec,
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    enum Typed {
        Instancetype(InstancetypeOptions),
        Preference(PreferenceOptions),
    }

    fn made(words: &str, namespace: Option<&str>) -> Result<Value> {
        let words = format!("x {words} -o json");
        let typed = Typed::try_parse_from(words.split(' '))
            .map_err(|error| Error::new(Kind::Usage, error.to_string()))?;
        let text = match typed {
            Typed::Instancetype(options) => instancetype(&options, namespace),
            Typed::Preference(options) => preference(&options, namespace),
        }?;
        Ok(serde_json::from_str(&text).unwrap())
    }

    #[test]
    fn manifests_are_those_of_virtctl() {
        let small = made("instancetype --name small --cpu 2 --memory 256Mi", None).unwrap();
        let spec = json!({"cpu": {"guest": 2}, "memory": {"guest": "256Mi"}});
        assert_eq!(
            small,
            json!({"apiVersion": "instancetype.kubevirt.io/v1beta1", "kind": "VirtualMachineClusterInstancetype",
                "metadata": {"name": "small"}, "spec": spec})
        );
        let devices = "instancetype --cpu 1 --memory 1Gi --iothreadspolicy auto --gpu name:a,devicename:n.com/A10 \
                       --gpu name:b,devicename:n.com/A10 --hostdevice name:c,devicename:i.com/qat";
        let devices = made(devices, None).unwrap();
        assert_eq!(devices["spec"]["gpus"][1], json!({"name": "b", "deviceName": "n.com/A10"}));
        assert_eq!(devices["spec"]["hostDevices"][0]["deviceName"], "i.com/qat");
        assert_eq!(devices["spec"]["ioThreadsPolicy"], "auto");
        let name = devices["metadata"]["name"].as_str().unwrap();
        assert!(name.starts_with("clusterinstancetype-") && name.len() == 25, "{name}");
        let words =
            "preference --cpu-topology cores --machine-type q35 --volume-storage-class fast --namespaced";
        let preference = made(words, None).unwrap();
        assert_eq!(preference["kind"], "VirtualMachinePreference");
        let spec = json!({"cpu": {"preferredCPUTopology": "cores"}, "machine": {"preferredMachineType": "q35"},
            "volumes": {"preferredStorageClassName": "fast"}});
        assert_eq!(preference["spec"], spec);
        let there = made("preference --name p", Some("shop")).unwrap();
        assert_eq!(there["kind"], "VirtualMachinePreference");
        assert_eq!((&there["metadata"]["namespace"], &there["spec"]), (&json!("shop"), &json!({})));
    }

    #[test]
    fn wrong_sizes_and_devices_are_wrong_usage() {
        for words in [
            "instancetype --cpu 0 --memory 1Gi",
            "instancetype --cpu 1",
            "instancetype --cpu 1 --memory much",
            "instancetype --cpu 1 --memory 1Gi --gpu name:a",
            "instancetype --cpu 1 --memory 1Gi --hostdevice name:a,devicename:b,other:c",
            "instancetype --cpu 1 --memory 1Gi --iothreadspolicy one",
            "preference --cpu-topology round",
        ] {
            assert_eq!(made(words, None).unwrap_err().kind(), Kind::Usage, "{words}");
        }
    }
}
