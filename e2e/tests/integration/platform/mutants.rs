//! The manifests with one wrong field at a time, at the API server with the platform's definitions and webhooks: each is
//! refused by the field's path. Nothing is stored: all requests are dry runs.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use guests::mutants::{Mutant, Wrong, mutants};
use guests::telling;
use hyper::Request;
use serde_json::Value;

use crate::platform::place::PLACE;

const NAMESPACE: &str = "mutants";
/// Requests at the same time.
const WORKERS: usize = 4;

/// Where objects of a kind are created; none: a kind of Kubernetes itself.
fn collection(object: &Value) -> Option<String> {
    let plural = match object["kind"].as_str()? {
        "VirtualMachine" => "virtualmachines",
        "VirtualMachineInstance" => "virtualmachineinstances",
        "DataVolume" => "datavolumes",
        "ConfigMap" | "Secret" => return None,
        other => panic!("{other}"),
    };
    let version = object["apiVersion"].as_str()?;
    Some(format!("/apis/{version}/namespaces/{NAMESPACE}/{plural}?dryRun=All&fieldValidation=Strict"))
}

/// Asks the API server as kubectl does, which validates fields strictly; the error is its message with the fields of its
/// causes.
fn accepted(object: &Value) -> Result<(), String> {
    let request = Request::post(collection(object).unwrap()).header("content-type", "application/json");
    let request = request.body(object.to_string().into_bytes()).unwrap();
    let client = PLACE.cluster.client();
    match PLACE.cluster.run(client.request::<Value>(request)) {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) => {
            let causes = status.details.iter().flat_map(|details| &details.causes);
            let fields: Vec<&str> = causes.map(|cause| cause.field.as_str()).collect();
            Err(format!("{} ({})", status.message, fields.join(", ")))
        }
        Err(error) => panic!("{error}"),
    }
}

/// A mutant that is not refused as it must be, for the text of a failure.
fn problem(mutant: &Mutant) -> Option<String> {
    let Mutant { wrong, field, object } = mutant;
    match accepted(object) {
        Ok(()) if mutant.is_free() => None,
        Ok(()) => Some(format!("{field} is accepted: {wrong:?}")),
        // The field that such a value is wrong for may be another one, such as the volume of a disk.
        Err(why) if *wrong == Wrong::Value && why.contains("spec.") => None,
        Err(why) if why.contains(field.as_str()) => None,
        Err(why) => Some(format!("{field} is not named: {wrong:?}: {why}")),
    }
}

#[test]
fn one_wrong_field_at_a_time_is_refused_by_the_api_server() {
    PLACE.namespace(NAMESPACE);
    let mut all = Vec::new();
    for manifest in telling::manifests() {
        let text = manifest.with_server("https://example.com");
        for document in api::manifest::documents(text.as_bytes()).unwrap() {
            let object = document.value;
            if collection(&object).is_some() {
                accepted(&object).unwrap_or_else(|why| panic!("{}: {why}", manifest.name));
                let mutants = mutants(&object, &api::schema::leaves(&object)).into_iter();
                all.extend(mutants.map(|mutant| (manifest.name.clone(), mutant)));
            }
        }
    }
    let (begun, next) = (Instant::now(), AtomicUsize::new(0));
    let work = || {
        let mut problems = Vec::new();
        while let Some((name, mutant)) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
            problems.extend(problem(mutant).map(|problem| format!("{name}: {problem}")));
        }
        problems
    };
    let problems: Vec<String> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    let count = |wrong| all.iter().filter(|(_, mutant)| mutant.wrong == wrong).count();
    let counts = [Wrong::Type, Wrong::Name, Wrong::Value].map(count);
    println!(
        "mutants by type, name and value {counts:?} in {:?}; {} problems",
        begun.elapsed(),
        problems.len()
    );
    assert!(counts.iter().all(|count| *count > 100), "{counts:?}");
    assert!(problems.is_empty(), "{problems:#?}");
    PLACE.remove_namespace(NAMESPACE);
}
