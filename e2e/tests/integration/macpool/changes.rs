//! Real machines during the load: created, changed and deleted through the API server, twenty calls a second.
//!
//! Two of three machines are deleted in the end of their lives; in a namespace that rejects duplicates, one of eight is
//! made with an address that another machine has already.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, PostParams};
use serde_json::{Value, json};

use crate::macpool::setup::{Place, addresses, guest, machine, until};

/// So that two creations, two changes and more than one deletion in three lives make twenty calls a second.
const LIFE: Duration = Duration::from_millis(130);
/// Between the calls of one life.
const PAUSE: Duration = Duration::from_millis(400);

/// The results of the calls.
#[derive(Debug, Default)]
pub(crate) struct Done {
    pub(crate) answered: usize,
    /// Those that failed.
    pub(crate) failed: Vec<Failed>,
    /// Machines that were made with another's address on purpose: the address, and its first owner's name.
    pub(crate) passed: Vec<(String, String, String)>,
    /// How many such machines were refused.
    pub(crate) refused: usize,
    /// Machines that stay, with their addresses.
    stay: Vec<(String, Vec<String>)>,
}

/// A call that failed.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) began: Instant,
    pub(crate) ended: Instant,
    /// The API server's message.
    pub(crate) why: String,
}

impl Failed {
    fn new(began: Instant, error: &kube::Error) -> Self {
        Self { began, ended: Instant::now(), why: error.to_string() }
    }
}

/// The machines of a cluster.
pub(crate) fn machines(place: &Place) -> Api<DynamicObject> {
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("kubevirt.io", "v1", "VirtualMachine"));
    Api::namespaced_with(place.cluster.client(), "reject", &kind)
}

/// One machine, from its creation to the end. `None` when a call failed.
async fn life(machines: Api<DynamicObject>, name: String, stays: bool, done: Arc<Mutex<Done>>) -> Option<()> {
    let note = |began: Instant, result: kube::Result<DynamicObject>| {
        let mut done = done.lock().unwrap();
        match result {
            Ok(object) => {
                done.answered += 1;
                Some(object)
            }
            Err(error) => {
                done.failed.push(Failed::new(began, &error));
                None
            }
        }
    };
    let parameters = PostParams::default();
    let object = machine(&name, &json!([{"name": "a", "bridge": {}}]));
    let began = Instant::now();
    let made = note(began, machines.create(&parameters, &serde_json::from_value(object).unwrap()).await)?;
    tokio::time::sleep(PAUSE).await;
    let mut changed = serde_json::to_value(&made).unwrap();
    let spec = &mut changed["spec"]["template"]["spec"];
    spec["domain"]["devices"]["interfaces"].as_array_mut().unwrap().push(json!({"name": "b", "bridge": {}}));
    spec["networks"].as_array_mut().unwrap().push(json!({"name": "b", "multus": {"networkName": "b"}}));
    let changed = serde_json::from_value(changed).unwrap();
    let began = Instant::now();
    let changed = note(began, machines.replace(&name, &parameters, &changed).await)?;
    tokio::time::sleep(PAUSE).await;
    if stays {
        let macs = addresses(&serde_json::to_value(&changed).unwrap());
        done.lock().unwrap().stay.push((name, macs));
    } else {
        let began = Instant::now();
        let gone = machines.delete(&name, &DeleteParams::default()).await;
        note(began, gone.map(|either| either.left().unwrap_or(made)))?;
    }
    Some(())
}

/// A machine with an address that another has.
async fn duplicate(machines: Api<DynamicObject>, name: String, done: Arc<Mutex<Done>>) {
    let Some((first, macs)) = done.lock().unwrap().stay.last().cloned() else { return };
    let object = machine(&name, &json!([{"name": "a", "bridge": {}, "macAddress": macs[0]}]));
    let began = Instant::now();
    let made = machines.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await;
    let mut done = done.lock().unwrap();
    match made {
        Ok(_) => done.passed.push((macs[0].clone(), first, name)),
        Err(kube::Error::Api(status)) if status.code == 409 => done.refused += 1,
        Err(error) => done.failed.push(Failed::new(began, &error)),
    }
}

/// Makes, changes and deletes machines with names that begin with `prefix` for so many seconds.
pub(crate) async fn change(machines: Api<DynamicObject>, prefix: &str, seconds: u64) -> Done {
    let done = Arc::new(Mutex::new(Done::default()));
    let mut ticks = tokio::time::interval(LIFE);
    let mut running = tokio::task::JoinSet::new();
    let lives = Duration::from_secs(seconds).as_millis() / LIFE.as_millis();
    for number in 0..lives {
        ticks.tick().await;
        let name = format!("{prefix}-{number}");
        if number % 8 == 7 {
            running.spawn(duplicate(machines.clone(), name, done.clone()));
        } else {
            let life = life(machines.clone(), name, number % 3 == 0, done.clone());
            running.spawn(async { life.await.unwrap_or_default() });
        }
    }
    while let Some(ended) = running.join_next().await {
        ended.unwrap();
    }
    Arc::into_inner(done).unwrap().into_inner().unwrap()
}

/// The owner of each address in the API server's objects. Only addresses in `passed` may have two.
pub(crate) fn held(place: &Place, passed: &[(String, String, String)]) -> HashMap<String, String> {
    let all = place.get("reject", "vm");
    let mut holders: HashMap<String, String> = HashMap::new();
    for one in all["items"].as_array().unwrap() {
        let name = one["metadata"]["name"].as_str().unwrap();
        if passed.iter().any(|(_, _, second)| second == name) {
            continue;
        }
        for mac in addresses(one) {
            assert!(mac.starts_with("02:00:00:"), "{name}: {mac}");
            assert_eq!(holders.insert(mac.clone(), name.to_owned()), None, "{mac} twice");
        }
    }
    holders
}

/// Runs the guests of duplicates that passed: each raises the event, of both its machines.
pub(crate) fn check_events(place: &Place, passed: &[(String, String, String)]) {
    for (mac, first, second) in passed {
        for name in [first, second] {
            place.apply(&guest("reject", name, mac).to_string());
        }
        for name in [first, second] {
            let selector =
                format!("--field-selector=involvedObject.name={name},reason=MACCollision,type=Warning");
            until("the collision is told", || {
                let events = place.kubectl(&["-n", "reject", "get", "events", &selector, "-o", "json"]);
                let events: Value = serde_json::from_str(&events).unwrap();
                let told = events["items"].as_array().unwrap().iter();
                told.filter_map(|event| event["message"].as_str())
                    .find(|message| message.contains(mac))
                    .map(drop)
            });
        }
    }
}
