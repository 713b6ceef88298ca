//! Many objects that are there already: 10 000 machines with two interfaces and 10 000 pods with FERROVIRT_SOAK=1.

use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, PostParams};
use serde_json::{Value, json};

use crate::macpool::setup::{Place, machine};

#[test]
fn a_replica_reports_readiness_and_stays_small() {
    let count: u32 = if std::env::var_os("FERROVIRT_SOAK").is_some() { 10_000 } else { 500 };
    let place = Place::new("02:00:00:00:00:00", "02:00:00:ff:ff:ff");
    // Straight to the API server: the webhook is not asked.
    place.kubectl(&["delete", "mutatingwebhookconfiguration", "kubemacpool-mutator"]);
    let vm = ApiResource::from_gvk(&GroupVersionKind::gvk("kubevirt.io", "v1", "VirtualMachine"));
    let pod = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "Pod"));
    let client = place.cluster.client();
    let machines = Api::<DynamicObject>::namespaced_with(client.clone(), "default", &vm);
    let pods = Api::<DynamicObject>::namespaced_with(client, "default", &pod);
    let mac = |first: u8, number: u32| {
        let [_, a, b, c] = number.to_be_bytes();
        format!("02:00:{first:02x}:{a:02x}:{b:02x}:{c:02x}")
    };
    let make = |number: u32| {
        let mut vm = machine(
            &format!("m-{number}"),
            &json!([{"name": "a", "bridge": {}}, {"name": "b", "bridge": {}}]),
        );
        let interfaces = &mut vm["spec"]["template"]["spec"]["domain"]["devices"]["interfaces"];
        interfaces[0]["macAddress"] = mac(0, number).into();
        interfaces[1]["macAddress"] = mac(1, number).into();
        let networks: Value = json!([{"name": "x", "mac": mac(2, number)}]);
        // No node will have it.
        let pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": format!("p-{number}"),
                "annotations": {"k8s.v1.cni.cncf.io/networks": networks.to_string()},
            },
            "spec": {
                "schedulerName": "nobody",
                "containers": [{"name": "c", "image": "none", "imagePullPolicy": "Never"}],
            },
        });
        let (vm, pod) = (serde_json::from_value(vm).unwrap(), serde_json::from_value(pod).unwrap());
        let (machines, pods) = (machines.clone(), pods.clone());
        async move {
            let parameters = PostParams::default();
            machines.create(&parameters, &vm).await.unwrap();
            pods.create(&parameters, &pod).await.unwrap();
        }
    };
    place.cluster.run(async {
        // So many at once.
        let mut running = tokio::task::JoinSet::new();
        for number in 0..count {
            if running.len() >= 16 {
                running.join_next().await.unwrap().unwrap();
            }
            running.spawn(make(number));
        }
        while let Some(done) = running.join_next().await {
            done.unwrap();
        }
    });
    // The first makes the certificates.
    place.start(0, &[]).kill();
    let mut ready = Vec::new();
    let replica = loop {
        let replica = place.start(0, &[]);
        ready.push(replica.ready_after);
        if ready.len() == 3 {
            break replica;
        }
        replica.kill();
    };
    let held = replica.metric("macpool_addresses_held").unwrap();
    println!("{held} addresses: ready after {ready:?}, {} KiB resident", replica.resident());
    assert_eq!(held, u64::from(count) * 3);
    assert!(replica.resident() <= 32 << 10);
}
