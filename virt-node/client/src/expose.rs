//! `expose`: a Service for a machine, a run or a replica set.

use std::net::IpAddr;

use clap::ValueEnum;
use cluster::{Key, Resource};
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use crate::error::{Error, Kind, Result, failed};
use crate::site::{INSTANCES, MACHINES, Site};

const REPLICA_SETS: Resource = Resource::namespaced("kubevirt.io", "v1", "virtualmachineinstancereplicasets");
const SERVICES: Resource = Resource::namespaced("", "v1", "services");

/// Kind of the exposed object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Exposed {
    /// VirtualMachine
    #[value(name = "vm", aliases = ["virtualmachine", "virtualmachines", "vms"])]
    Machine,
    /// VirtualMachineInstance
    #[value(name = "vmi", aliases = ["virtualmachineinstance", "virtualmachineinstances", "vmis"])]
    Instance,
    /// VirtualMachineInstanceReplicaSet
    #[value(name = "vmirs", aliases = ["virtualmachineinstancereplicaset", "virtualmachineinstancereplicasets", "vmirss"])]
    ReplicaSet,
}

/// Flags of the Service.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// Kind of object
    #[arg(value_enum)]
    kind: Exposed,
    /// Name of the object
    of: String,
    /// Name of the Service
    #[arg(long)]
    name: String,
    /// Port of the Service
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
    /// Port of the guest, or its name [default: --port]
    #[arg(long)]
    target_port: Option<String>,
    /// Protocol
    #[arg(long, value_parser = ["TCP", "UDP"], ignore_case = true, default_value = "TCP")]
    protocol: String,
    /// Name of the port
    #[arg(long)]
    port_name: Option<String>,
    /// Type of the Service
    #[arg(long = "type", value_parser = ["ClusterIP", "NodePort", "LoadBalancer"], default_value = "ClusterIP")]
    service: String,
    /// Address of the Service; None makes it headless
    #[arg(long, value_name = "ADDRESS")]
    cluster_ip: Option<String>,
    /// Address outside of the cluster that leads to the Service
    #[arg(long, value_name = "ADDRESS")]
    external_ip: Option<IpAddr>,
    /// Address of the load balancer
    #[arg(long, value_name = "ADDRESS")]
    load_balancer_ip: Option<IpAddr>,
    /// IP families, such as IPv4 or IPv4,IPv6
    #[arg(long, value_name = "FAMILIES")]
    ip_family: Option<String>,
    /// IP family policy
    #[arg(long, value_parser = ["SingleStack", "PreferDualStack", "RequireDualStack"])]
    ip_family_policy: Option<String>,
}

/// The Service; `labels` select its pods.
fn service(typed: &Options, labels: &Value) -> Result<Value> {
    let target = typed.target_port.as_deref();
    let target = match target.map(str::parse::<u16>) {
        None => json!(typed.port),
        Some(Ok(port)) => json!(port),
        Some(Err(_)) => json!(target),
    };
    let mut port =
        json!({"port": typed.port, "targetPort": target, "protocol": typed.protocol.to_uppercase()});
    if let Some(name) = &typed.port_name {
        port["name"] = json!(name);
    }
    let mut spec = json!({"selector": labels, "ports": [port], "type": typed.service});
    let texts = [
        ("clusterIP", typed.cluster_ip.clone()),
        ("loadBalancerIP", typed.load_balancer_ip.map(|address| address.to_string())),
        ("ipFamilyPolicy", typed.ip_family_policy.clone()),
    ];
    for (key, value) in texts {
        if let Some(value) = value {
            spec[key] = json!(value);
        }
    }
    if let Some(address) = typed.external_ip {
        spec["externalIPs"] = json!([address.to_string()]);
    }
    if let Some(families) = &typed.ip_family {
        let family = |text: &str| match text.trim().to_ascii_lowercase().as_str() {
            "ipv4" => Ok("IPv4"),
            "ipv6" => Ok("IPv6"),
            _ => Err(Error::new(Kind::Usage, format!("unknown IP family {text:?}: use IPv4, IPv6 or both"))),
        };
        spec["ipFamilies"] = json!(families.split(',').map(family).collect::<Result<Vec<_>>>()?);
    }
    Ok(json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": typed.name}, "spec": spec}))
}

/// Creates the Service.
///
/// # Errors
/// The object does not exist, or the Service is refused.
pub(crate) async fn expose(site: &Site, typed: &Options) -> Result<String> {
    let (resource, word) = match typed.kind {
        Exposed::Machine => (MACHINES, "vm"),
        Exposed::Instance => (INSTANCES, "vmi"),
        Exposed::ReplicaSet => (REPLICA_SETS, "vmirs"),
    };
    let key = Key::new(&site.namespace, &typed.of);
    let what = format!("error fetching {word} {}", typed.of);
    let object: Value = site.client.get(resource, &key).await.map_err(failed(what))?;
    let labels = labels(typed, &object)?;
    let created =
        site.client.create::<IgnoredAny>(SERVICES, &site.namespace, &service(typed, &labels)?).await;
    created.map_err(failed(format!("service creation failed for {}", typed.name)))?;
    Ok(format!("Service {} successfully exposed for {word} {}\n", typed.name, typed.of))
}

/// Labels of the launcher pods of the object.
fn labels(typed: &Options, object: &Value) -> Result<Value> {
    match typed.kind {
        Exposed::Machine | Exposed::Instance => Ok(json!({"vmi.kubevirt.io/id": typed.of})),
        Exposed::ReplicaSet => match object.pointer("/spec/selector/matchLabels") {
            Some(labels) if object.pointer("/spec/selector/matchExpressions").is_none() => Ok(labels.clone()),
            Some(_) | None => {
                let text = format!(
                    "cannot expose vmirs {}: its selector is not made of matchLabels alone",
                    typed.of
                );
                Err(Error::new(Kind::Refused, text))
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Typed {
        #[command(flatten)]
        options: Options,
    }

    fn typed(words: &str) -> Options {
        Typed::try_parse_from(format!("x {words}").split(' ')).unwrap().options
    }

    #[test]
    fn flags_become_a_service() {
        let one = typed("vm a --name s --port 80");
        let labels = labels(&one, &Value::Null).unwrap();
        assert_eq!(
            service(&one, &labels).unwrap(),
            json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": {
                "selector": {"vmi.kubevirt.io/id": "a"}, "type": "ClusterIP",
                "ports": [{"port": 80, "targetPort": 80, "protocol": "TCP"}]}})
        );
        let words = "vmi a --name s --port 53 --target-port dns --protocol udp --port-name p --type NodePort \
                     --cluster-ip None --external-ip 10.0.0.1 --ip-family ipv4,ipv6 --ip-family-policy PreferDualStack";
        let spec = service(&typed(words), &json!({})).unwrap()["spec"].clone();
        assert_eq!(spec["ports"], json!([{"port": 53, "targetPort": "dns", "protocol": "UDP", "name": "p"}]));
        assert_eq!((spec["clusterIP"].as_str(), spec["type"].as_str()), (Some("None"), Some("NodePort")));
        assert_eq!(spec["externalIPs"], json!(["10.0.0.1"]));
        assert_eq!(spec["ipFamilies"], json!(["IPv4", "IPv6"]));
        assert!(service(&typed("vm a --name s --port 80 --ip-family ipx"), &json!({})).is_err());
    }

    #[test]
    fn replica_sets_are_selected_by_their_labels() {
        let set = typed("vmirs a --name s --port 80");
        let object = json!({"spec": {"selector": {"matchLabels": {"app": "x"}}}});
        assert_eq!(labels(&set, &object).unwrap(), json!({"app": "x"}));
        let object = json!({"spec": {"selector": {"matchExpressions": []}}});
        assert!(labels(&set, &object).is_err());
    }
}
