//! VMs are accepted at every moment: right after the platform is available, and while the pods of a webhook are replaced.

#![expect(clippy::print_stdout, reason = "figures are shown with --nocapture")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, PostParams};
use serde_json::json;

use crate::platform::machines::machine;
use crate::platform::place::PLACE;

/// Namespace of the platform.
const PLATFORM: &str = operator::defaults::NAMESPACE;

/// Asks the API server, and so all webhooks of VMs, whether it would accept one.
pub(crate) async fn accepted(client: Client) -> Result<(), kube::Error> {
    let kind = GroupVersionKind::gvk("kubevirt.io", "v1", "VirtualMachine");
    let resource = ApiResource::from_gvk_with_plural(&kind, "virtualmachines");
    let machines: Api<DynamicObject> = Api::namespaced_with(client, "default", &resource);
    let object = machine("accepted", "Halted", &json!({"emptyDisk": {"capacity": "1Mi"}}));
    let object: DynamicObject = serde_json::from_value(object).unwrap();
    let params = PostParams { dry_run: true, ..PostParams::default() };
    machines.create(&params, &object).await.map(drop)
}

/// Uids of the pods of a Deployment, those that end among them.
fn pods(label: &str) -> Vec<String> {
    let uids = "jsonpath={range .items[*]}{.metadata.uid}{\"\\n\"}{end}";
    let all = PLACE.kubectl(&["-n", PLATFORM, "get", "pods", "-l", label, "-o", uids]).unwrap();
    all.lines().map(str::to_owned).collect()
}

/// Replaces all pods of a Deployment, found by `label`; a VM is accepted all the time.
pub(crate) fn accepted_while_replaced(deployment: &str, label: &str) {
    let before = pods(label);
    let over = AtomicBool::new(false);
    let begun = Instant::now();
    let asked = std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let mut asked = 0_u32;
            while !over.load(Ordering::Relaxed) {
                if let Err(error) = PLACE.cluster.run(accepted(PLACE.cluster.client())) {
                    return Err(format!("after {:?}, request {asked}: {error}", begun.elapsed()));
                }
                asked += 1;
                std::thread::sleep(Duration::from_millis(20));
            }
            Ok(asked)
        });
        let object = format!("deployment/{deployment}");
        PLACE.kubectl(&["-n", PLATFORM, "rollout", "restart", &object]).unwrap();
        PLACE.until(PLATFORM, &format!("pods of {deployment} are replaced"), || {
            let now = pods(label);
            let replaced = now.len() == before.len() && now.iter().all(|uid| !before.contains(uid));
            (replaced || asking.is_finished()).then_some(())
        });
        over.store(true, Ordering::Relaxed);
        asking.join().unwrap()
    });
    println!(
        "pods of {deployment} replaced in {:?}; requests accepted meanwhile: {asked:?}",
        begun.elapsed()
    );
    assert!(asked.unwrap() > 3);
}
