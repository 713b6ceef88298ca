//! Many ADDs at once on a bridge that is not there yet: all succeed, and no address is given twice.

use serde_json::{Value, json};

use crate::support::addresses::{addresses, four, reserved};
use crate::support::{Host, Namespace, bridge, count};

/// 64 on one bridge that is not there yet, with one range.
#[test]
fn many_at_once_have_different_addresses() {
    let host = Host::new();
    let total = count(64, 250);
    let config = four(&host, json!({"isDefaultGateway": true}));
    let pods: Vec<Namespace> = (0..total).map(|_| Namespace::new()).collect();
    let start = std::time::Instant::now();
    let results: Vec<Value> = std::thread::scope(|scope| {
        let (host, config) = (&host, &config);
        let calls = pods.iter().enumerate().map(|(index, pod)| {
            scope.spawn(move || {
                let mut call = host.call("ADD", pod, config);
                call.container = format!("c{index}");
                host.make(&call).result()
            })
        });
        let calls: Vec<_> = calls.collect();
        calls.into_iter().map(|call| call.join().unwrap()).collect()
    });
    println!("{total} ADDs at once: {:?}", start.elapsed());
    let mut distinct: Vec<&str> =
        results.iter().map(|result| result["ips"][0]["address"].as_str().unwrap()).collect();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), total);
    let mac = host.namespace.link("br0")["address"].clone();
    assert!(
        results.iter().all(|result| result["interfaces"][0]["mac"] == mac),
        "the bridge's address is one"
    );
    assert_eq!(addresses(&host.namespace, "br0"), ["10.1.2.1/24"]);
    pods[0].run("busybox", &["ping", "-c1", "-W2", distinct[total - 1].trim_end_matches("/24")]);
    std::thread::scope(|scope| {
        let (host, config) = (&host, &config);
        for (index, pod) in pods.iter().enumerate() {
            scope.spawn(move || {
                let mut call = host.call("DEL", pod, config);
                call.container = format!("c{index}");
                host.make(&call).result();
            });
        }
    });
    assert_eq!(host.namespace.names(), ["br0"]);
    assert_eq!(reserved(&host, "net"), 0);
}

#[test]
fn many_at_once_on_a_bridge_that_is_not_there_yet() {
    let host = Host::new();
    let pods: Vec<Namespace> = (0..32).map(|_| Namespace::new()).collect();
    std::thread::scope(|scope| {
        let host = &host;
        let calls = pods.iter().enumerate().map(|(index, pod)| {
            scope.spawn(move || {
                let mut call = host.call("ADD", pod, &bridge());
                call.container = format!("c{index}");
                host.make(&call).result();
            })
        });
        calls.collect::<Vec<_>>().into_iter().for_each(|call| call.join().unwrap());
    });
    assert_eq!(host.namespace.names().len(), 33);
}
